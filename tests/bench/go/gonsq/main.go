// A client on go-nsq for each row of the benchmark, with go-nsq's own defaults but for what the
// row asks for. Reads one order as JSON from its first argument and prints one line of JSON.
package main

import (
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nsqio/go-nsq"
)

type Order struct {
	Kind        string  `json:"kind"`
	Address     string  `json:"address"`
	Topic       string  `json:"topic"`
	Channel     string  `json:"channel"`
	Messages    int     `json:"messages"`
	Warmup      int     `json:"warmup"`
	BodySize    int     `json:"body_size"`
	Callers     int     `json:"callers"`
	Batch       int     `json:"batch"`
	MaxInFlight int     `json:"max_in_flight"`
	Workers     int     `json:"workers"`
	Transport   string  `json:"transport"`
	CPU         *int    `json:"cpu"`
	ServerPid   int     `json:"server_pid"`
	Seconds     float64 `json:"seconds"`
}

type moment struct {
	wall         time.Time
	user, system float64
	server       *float64
	reads        *int64
	writes       *int64
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// CPU seconds that all threads of a process have used.
func serverSeconds(pid int) *float64 {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil
	}
	total := 0.0
	for _, task := range tasks {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, task.Name()))
		if err != nil {
			return nil
		}
		nanos, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
		if err != nil {
			return nil
		}
		total += nanos / 1e9
	}
	return &total
}

// How often a process has called read and write.
func serverCalls(pid int) (*int64, *int64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return nil, nil
	}
	var reads, writes *int64
	for _, line := range strings.Split(string(text), "\n") {
		name, value, _ := strings.Cut(line, ": ")
		number, _ := strconv.ParseInt(value, 10, 64)
		switch name {
		case "syscr":
			reads = &number
		case "syscw":
			writes = &number
		}
	}
	return reads, writes
}

func usage() (float64, float64) {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(used.Utime), seconds(used.Stime)
}

type meter struct {
	order       Order
	begin, end  moment
	latencies   []int64
	latencyLock sync.Mutex
}

// nsqd is read outside of the client's marks, so that reading it costs the client nothing.
func (m *meter) start() {
	m.begin.server = serverSeconds(m.order.ServerPid)
	m.begin.reads, m.begin.writes = serverCalls(m.order.ServerPid)
	m.begin.user, m.begin.system = usage()
	m.begin.wall = time.Now()
}

func (m *meter) stop() {
	m.end.wall = time.Now()
	m.end.user, m.end.system = usage()
	m.end.server = serverSeconds(m.order.ServerPid)
	m.end.reads, m.end.writes = serverCalls(m.order.ServerPid)
}

func (m *meter) print() {
	result := map[string]interface{}{
		"messages": m.order.Messages,
		"wall":     m.end.wall.Sub(m.begin.wall).Seconds(),
		"user":     m.end.user - m.begin.user,
		"system":   m.end.system - m.begin.system,
		"server":   nil,
	}
	if m.begin.server != nil && m.end.server != nil {
		result["server"] = *m.end.server - *m.begin.server
	}
	if m.begin.reads != nil && m.end.reads != nil {
		result["server_reads"] = *m.end.reads - *m.begin.reads
		result["server_writes"] = *m.end.writes - *m.begin.writes
	}
	if m.order.Kind == "latency" {
		result["latencies"] = m.latencies
	}
	versions := map[string]string{"go": runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/nsqio/go-nsq" {
				versions["go-nsq"] = module.Version
			}
		}
	}
	result["versions"] = versions
	check(json.NewEncoder(os.Stdout).Encode(result))
}

func producer(order Order) *nsq.Producer {
	made, err := nsq.NewProducer(order.Address, nsq.NewConfig())
	check(err)
	made.SetLogger(log.New(io.Discard, "", 0), nsq.LogLevelError)
	return made
}

func inCallers(m *meter, call func()) {
	order := m.order
	all := func(messages int) {
		var wait sync.WaitGroup
		for i := 0; i < order.Callers; i++ {
			wait.Add(1)
			go func() {
				defer wait.Done()
				for n := 0; n < messages/order.Batch/order.Callers; n++ {
					call()
				}
			}()
		}
		wait.Wait()
	}
	all(order.Warmup)
	m.start()
	all(order.Messages)
	m.stop()
}

func publish(m *meter, body []byte) {
	client := producer(m.order)
	inCallers(m, func() { check(client.Publish(m.order.Topic, body)) })
}

func publishMany(m *meter, body []byte) {
	client := producer(m.order)
	bodies := make([][]byte, m.order.Batch)
	for i := range bodies {
		bodies[i] = body
	}
	inCallers(m, func() { check(client.MultiPublish(m.order.Topic, bodies)) })
}

func consume(m *meter) {
	order := m.order
	config := nsq.NewConfig()
	config.MaxInFlight = order.MaxInFlight
	switch order.Transport {
	case "snappy":
		config.Snappy = true
	case "deflate":
		config.Deflate = true
	case "tls":
		config.TlsV1 = true
		config.TlsConfig = &tls.Config{InsecureSkipVerify: true}
	}
	consumer, err := nsq.NewConsumer(order.Topic, order.Channel, config)
	check(err)
	consumer.SetLogger(log.New(io.Discard, "", 0), nsq.LogLevelError)
	first, last := int64(order.Warmup), int64(order.Warmup+order.Messages)
	measured := order.Kind == "latency"
	done := make(chan struct{})
	var count int64
	handler := nsq.HandlerFunc(func(message *nsq.Message) error {
		if measured {
			sent := int64(binary.BigEndian.Uint64(message.Body))
			waited := (time.Now().UnixNano() - sent) / 1000
			m.latencyLock.Lock()
			m.latencies = append(m.latencies, waited)
			m.latencyLock.Unlock()
		}
		switch atomic.AddInt64(&count, 1) {
		case first:
			m.start()
		case last:
			m.stop()
			close(done)
		}
		return nil
	})
	consumer.AddConcurrentHandlers(handler, order.Workers)
	check(consumer.ConnectToNSQD(order.Address))
	<-done
	if measured {
		m.latencyLock.Lock()
		m.latencies = append([]int64{}, m.latencies[first:last]...)
		m.latencyLock.Unlock()
	}
}

func main() {
	log.SetFlags(0)
	m := &meter{}
	check(json.Unmarshal([]byte(os.Args[1]), &m.order))
	body := []byte(strings.Repeat("x", m.order.BodySize))
	switch m.order.Kind {
	case "publish":
		publish(m, body)
	case "publish_many":
		publishMany(m, body)
	case "consume", "latency":
		consume(m)
	default:
		log.Fatalf("no kind %q", m.order.Kind)
	}
	m.print()
}
