// The TCP protocol of the nsqds, for consumers and in small for producers.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	frameResponse = 0
	frameError    = 1
	frameMessage  = 2
	maxRdy        = 2500
	// Frames that are made before they are sent together.
	atATime = 250
)

type again struct {
	id       uint64
	attempts uint16
}

type channel struct {
	mu          sync.Mutex
	next        uint64 // the id of the next new message
	fresh       int
	again       []again
	inFlight    int
	done        int
	requeued    int
	subscribers map[*client]bool
}

func (c *channel) add(messages int) {
	c.mu.Lock()
	c.fresh += messages
	c.wakeAll()
	c.mu.Unlock()
}

func (c *channel) wakeAll() {
	for subscriber := range c.subscribers {
		subscriber.wakeUp()
	}
}

func (c *channel) depths() (depth, inFlight int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh + len(c.again), c.inFlight
}

func (c *channel) stats(name string) map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	depth := c.fresh + len(c.again)
	return map[string]any{
		"channel_name": name, "depth": depth, "backend_depth": 0, "in_flight_count": c.inFlight,
		"deferred_count": 0, "message_count": c.done + c.inFlight + depth,
		"requeue_count": c.requeued, "timeout_count": 0, "client_count": len(c.subscribers),
		"clients": []any{}, "paused": false,
		"e2e_processing_latency": map[string]any{"count": 0, "percentiles": nil},
	}
}

// take gives up to count messages; those that were delivered before come first.
func (c *channel) take(count int, found []again) []again {
	c.mu.Lock()
	defer c.mu.Unlock()
	for count > 0 && len(c.again) > 0 {
		found = append(found, c.again[0])
		c.again = c.again[1:]
		c.inFlight++
		count--
	}
	for count > 0 && c.fresh > 0 {
		found = append(found, again{c.next, 1})
		c.next++
		c.fresh--
		c.inFlight++
		count--
	}
	return found
}

func (c *channel) finish() {
	c.mu.Lock()
	c.inFlight--
	c.done++
	c.mu.Unlock()
}

func (c *channel) giveBack(messages []again) {
	c.mu.Lock()
	c.inFlight -= len(messages)
	c.requeued += len(messages)
	c.again = append(c.again, messages...)
	c.wakeAll()
	c.mu.Unlock()
}

type client struct {
	nsqd      *nsqd
	conn      net.Conn
	wake      chan bool
	ended     chan bool
	heartbeat time.Duration

	mu       sync.Mutex // of what follows, and of writing to the connection
	channel  *channel
	rdy      int
	inFlight map[uint64]uint16 // id, attempts
	closing  bool
	out      []byte
	taken    []again
}

func (n *nsqd) accept() {
	for {
		conn, err := n.tcp.Accept()
		if err != nil {
			return
		}
		n.world.count(&n.world.counts.Connections, 1)
		c := &client{
			nsqd: n, conn: conn, wake: make(chan bool, 1), ended: make(chan bool),
			heartbeat: 30 * time.Second, inFlight: map[uint64]uint16{},
		}
		go c.serve()
	}
}

func (c *client) wakeUp() {
	select {
	case c.wake <- true:
	default:
	}
}

func (c *client) serve() {
	c.read()
	close(c.ended)
	c.conn.Close()
	c.mu.Lock()
	channel, left := c.channel, c.inFlight
	c.inFlight, c.rdy = map[uint64]uint16{}, 0
	c.mu.Unlock()
	if channel == nil {
		return
	}
	channel.mu.Lock()
	delete(channel.subscribers, c)
	channel.mu.Unlock()
	back := make([]again, 0, len(left))
	for id, attempts := range left {
		back = append(back, again{id, attempts + 1})
	}
	channel.giveBack(back)
}

func (c *client) read() {
	in := bufio.NewReaderSize(c.conn, 1<<16)
	magic := make([]byte, 4)
	if _, err := io.ReadFull(in, magic); err != nil || string(magic) != "  V2" {
		return
	}
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		if len(line) == 20 && string(line[:4]) == "FIN " {
			c.finish(line[4:])
			continue
		}
		words := bytes.Split(line, []byte(" "))
		if !c.command(in, words) {
			return
		}
		// Answers that came together are handled before more is sent.
		if in.Buffered() == 0 {
			c.wakeUp()
		}
	}
}

// command handles anything but FIN; false ends the connection.
func (c *client) command(in *bufio.Reader, words [][]byte) bool {
	switch string(words[0]) {
	case "NOP":
	case "IDENTIFY":
		body, err := sized(in)
		return err == nil && c.identify(body)
	case "SUB":
		return len(words) == 3 && c.subscribe(string(words[1]), string(words[2]))
	case "RDY":
		rdy := 1
		if len(words) > 1 {
			rdy, _ = strconv.Atoi(string(words[1]))
		}
		if rdy < 0 || rdy > maxRdy {
			c.fail(fmt.Sprintf("E_INVALID RDY count %d out of range 0-%d", rdy, maxRdy))
			return false
		}
		c.mu.Lock()
		c.rdy = rdy
		c.mu.Unlock()
	case "REQ":
		c.requeue(words)
	case "TOUCH":
	case "CLS":
		c.mu.Lock()
		c.closing = true
		c.write(frameResponse, []byte("CLOSE_WAIT"))
		c.mu.Unlock()
	case "PUB", "DPUB", "MPUB":
		body, err := sized(in)
		if err != nil {
			return false
		}
		messages := 1
		if string(words[0]) == "MPUB" && len(body) >= 4 {
			messages = int(binary.BigEndian.Uint32(body))
		}
		c.nsqd.world.count(&c.nsqd.world.counts.Published, messages)
		c.respond("OK")
	default:
		c.fail("E_INVALID invalid command " + string(words[0]))
		return false
	}
	return true
}

func sized(in *bufio.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(in, body)
	return body, err
}

func (c *client) identify(body []byte) bool {
	var asked struct {
		FeatureNegotiation bool `json:"feature_negotiation"`
		HeartbeatInterval  int  `json:"heartbeat_interval"`
		MsgTimeout         int  `json:"msg_timeout"`
		OutputBufferSize   int  `json:"output_buffer_size"`
	}
	if json.Unmarshal(body, &asked) != nil {
		c.fail("E_BAD_BODY IDENTIFY failed to decode JSON body")
		return false
	}
	if asked.HeartbeatInterval != 0 {
		c.heartbeat = time.Duration(asked.HeartbeatInterval) * time.Millisecond
	}
	if asked.MsgTimeout == 0 {
		asked.MsgTimeout = 60000
	}
	if !asked.FeatureNegotiation {
		c.respond("OK")
		return true
	}
	answer, _ := json.Marshal(map[string]any{
		"max_rdy_count": maxRdy, "version": "1.3.0", "max_msg_timeout": 900000,
		"msg_timeout": asked.MsgTimeout, "tls_v1": false, "deflate": false, "deflate_level": 6,
		"max_deflate_level": 6, "snappy": false, "sample_rate": 0, "auth_required": false,
		"output_buffer_size": 16384, "output_buffer_timeout": 250,
	})
	c.respond(string(answer))
	return true
}

func (c *client) subscribe(topicName, channelName string) bool {
	if c.channel != nil {
		c.fail("E_INVALID cannot SUB in current state")
		return false
	}
	channel := c.nsqd.channel(topicName, channelName)
	c.mu.Lock()
	c.channel = channel
	c.mu.Unlock()
	channel.mu.Lock()
	channel.subscribers[c] = true
	channel.mu.Unlock()
	c.nsqd.world.count(&c.nsqd.world.counts.Subscriptions, 1)
	c.respond("OK")
	go c.deliver()
	return true
}

// deliver sends what RDY allows, and heartbeats, until the connection ends.
func (c *client) deliver() {
	var beats <-chan time.Time
	if c.heartbeat > 0 {
		ticker := time.NewTicker(c.heartbeat)
		defer ticker.Stop()
		beats = ticker.C
	}
	for {
		select {
		case <-c.ended:
			return
		case <-beats:
			c.respond("_heartbeat_")
		case <-c.wake:
			for c.deliverSome() {
			}
		}
	}
}

func (c *client) deliverSome() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	room := min(c.rdy-len(c.inFlight), atATime)
	if c.closing || room <= 0 {
		return false
	}
	c.taken = c.channel.take(room, c.taken[:0])
	if len(c.taken) == 0 {
		return false
	}
	c.out = c.out[:0]
	now := uint64(time.Now().UnixNano())
	for _, message := range c.taken {
		c.inFlight[message.id] = message.attempts
		c.out = appendMessage(c.out, message, now, c.nsqd.world.size)
	}
	c.nsqd.world.count(&c.nsqd.world.counts.Delivered, len(c.taken))
	_, err := c.conn.Write(c.out)
	return err == nil
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

const digits = "0123456789abcdef"

// appendMessage: the body begins with the id's number and is filled up with x.
func appendMessage(out []byte, message again, now uint64, size int) []byte {
	out = binary.BigEndian.AppendUint32(out, uint32(4+8+2+16+size))
	out = binary.BigEndian.AppendUint32(out, frameMessage)
	out = binary.BigEndian.AppendUint64(out, now)
	out = binary.BigEndian.AppendUint16(out, message.attempts)
	for shift := 60; shift >= 0; shift -= 4 {
		out = append(out, digits[message.id>>shift&15])
	}
	out = binary.BigEndian.AppendUint64(out, message.id)
	for filler := size - 8; filler > 0; filler-- {
		out = append(out, 'x')
	}
	return out
}

// land removes a message from flight; its attempts, and whether it was there.
func (c *client) land(id []byte) (uint64, uint16, bool) {
	number, err := strconv.ParseUint(string(id), 16, 64)
	c.mu.Lock()
	attempts, known := c.inFlight[number]
	delete(c.inFlight, number)
	c.mu.Unlock()
	return number, attempts, known && err == nil
}

func (c *client) finish(id []byte) {
	_, _, known := c.land(id)
	if !known {
		c.nsqd.world.count(&c.nsqd.world.counts.Refused, 1)
		c.fail("E_FIN_FAILED FIN " + string(id) + " failed ID not in flight")
		return
	}
	c.channel.finish()
	c.nsqd.world.count(&c.nsqd.world.counts.Finished, 1)
	c.wakeUp()
}

func (c *client) requeue(words [][]byte) {
	if len(words) != 3 {
		c.fail("E_INVALID REQ insufficient number of params")
		return
	}
	number, attempts, known := c.land(words[1])
	if !known {
		c.nsqd.world.count(&c.nsqd.world.counts.Refused, 1)
		c.fail("E_REQ_FAILED REQ " + string(words[1]) + " failed ID not in flight")
		return
	}
	c.nsqd.world.count(&c.nsqd.world.counts.Requeued, 1)
	c.channel.giveBack([]again{{number, attempts + 1}})
}

func (c *client) respond(text string) {
	c.mu.Lock()
	c.write(frameResponse, []byte(text))
	c.mu.Unlock()
}

func (c *client) fail(text string) {
	c.mu.Lock()
	c.write(frameError, []byte(text))
	c.mu.Unlock()
}

// write must be called with the lock.
func (c *client) write(kind uint32, data []byte) {
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 8+len(data)), uint32(4+len(data)))
	frame = binary.BigEndian.AppendUint32(frame, kind)
	c.conn.Write(append(frame, data...))
}
