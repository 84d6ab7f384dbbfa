// manynsqs speaks for many nsqds and one nsqlookupd in one process, so that a client can be measured
// against hundreds of them on one machine.
//
// It delivers messages of a known size that it makes up itself, and checks and counts the answers.
// What is published is counted and thrown away. There is no disk, TLS, AUTH, deferral or msg_timeout;
// messages of a connection that ends, and those given back, are delivered again at once.
//
// The first line of stdout tells the addresses as JSON. It ends when stdin is closed.
package main

import (
	"encoding/json"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

type world struct {
	nsqds    []*nsqd
	size     int
	delay    time.Duration
	mu       sync.Mutex
	channels map[string]map[string]bool // what nsqlookupd was told: topic, channels
	feeding  map[string]float64         // topic, messages a second over all nsqds
	counts   counts
}

type counts struct {
	Delivered, Finished, Requeued, Refused, Published int64
	Connections, Subscriptions, Requests              int64
}

type nsqd struct {
	world  *world
	number int
	silent bool
	tcp    net.Listener
	http   net.Listener
	mu     sync.Mutex
	topics map[string]*topic
}

type topic struct {
	channels map[string]*channel
}

func (n *nsqd) topic(name string) *topic {
	n.mu.Lock()
	defer n.mu.Unlock()
	found := n.topics[name]
	if found == nil {
		found = &topic{channels: map[string]*channel{}}
		n.topics[name] = found
	}
	return found
}

func (n *nsqd) channel(topicName, name string) *channel {
	topic := n.topic(topicName)
	n.mu.Lock()
	defer n.mu.Unlock()
	found := topic.channels[name]
	if found == nil {
		// Ids are unique in a channel; the nsqd's number makes them differ between nsqds.
		found = &channel{next: uint64(n.number+1) << 40, subscribers: map[*client]bool{}}
		topic.channels[name] = found
	}
	return found
}

// fill gives every channel of a topic on every nsqd that many messages more.
func (w *world) fill(topicName string, messages int) {
	for _, n := range w.nsqds {
		n.mu.Lock()
		var found []*channel
		if topic := n.topics[topicName]; topic != nil {
			for _, channel := range topic.channels {
				found = append(found, channel)
			}
		}
		n.mu.Unlock()
		for _, channel := range found {
			channel.add(messages)
		}
	}
}

// feed keeps to the rates that were asked for, with a part of each second at a time.
func (w *world) feed() {
	const step = 50 * time.Millisecond
	owed := map[string]float64{}
	last := time.Now()
	for now := range time.Tick(step) {
		passed := now.Sub(last).Seconds()
		last = now
		w.mu.Lock()
		rates := make(map[string]float64, len(w.feeding))
		for name, rate := range w.feeding {
			rates[name] = rate
		}
		w.mu.Unlock()
		for name, rate := range rates {
			owed[name] += rate * passed / float64(len(w.nsqds))
			if whole := int(owed[name]); whole > 0 {
				owed[name] -= float64(whole)
				w.fill(name, whole)
			}
		}
	}
}

func listen(address string) net.Listener {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	return listener
}

func main() {
	count := flag.Int("nsqds", 100, "how many nsqds")
	size := flag.Int("size", 100, "bytes of a body, at least 8")
	silent := flag.Int("silent", 0, "how many of them, the last ones, never answer over HTTP")
	delay := flag.Duration("delay", 0, "how long each answer over HTTP takes")
	address := flag.String("address", "127.0.0.1", "where to listen")
	flag.Parse()
	if *size < 8 || *count < 1 || *silent > *count {
		log.Fatal("-size must be at least 8, -nsqds at least 1, -silent at most -nsqds")
	}
	w := &world{
		size:     *size,
		delay:    *delay,
		channels: map[string]map[string]bool{},
		feeding:  map[string]float64{},
	}
	var tcp, httpAddresses []string
	for number := 0; number < *count; number++ {
		n := &nsqd{
			world:  w,
			number: number,
			silent: number >= *count-*silent,
			tcp:    listen(net.JoinHostPort(*address, "0")),
			http:   listen(net.JoinHostPort(*address, "0")),
			topics: map[string]*topic{},
		}
		w.nsqds = append(w.nsqds, n)
		tcp = append(tcp, n.tcp.Addr().String())
		httpAddresses = append(httpAddresses, n.http.Addr().String())
	}
	lookupd := listen(net.JoinHostPort(*address, "0"))
	for _, n := range w.nsqds {
		go n.accept()
		go http.Serve(n.http, n.api())
	}
	go http.Serve(lookupd, w.api())
	go w.feed()
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"tcp": tcp, "http": httpAddresses, "lookupd": lookupd.Addr().String(),
	})
	io.Copy(io.Discard, os.Stdin)
}

func (w *world) count(counter *int64, more int) { atomic.AddInt64(counter, int64(more)) }

func port(listener net.Listener) int { return listener.Addr().(*net.TCPAddr).Port }

func number(text string) (float64, bool) {
	value, err := strconv.ParseFloat(text, 64)
	return value, err == nil && value >= 0
}
