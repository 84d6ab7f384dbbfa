// Consumers on go-nsq with its defaults, whose messages' waits are measured. Reads one order as
// JSON from its first argument and appends a line for each call of the handler to a file.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log"
	"os"
	"strings"
	"time"

	"github.com/nsqio/go-nsq"
)

type Order struct {
	Log      string   `json:"log"`
	Topics   []string `json:"topics"`
	Channel  string   `json:"channel"`
	Nsqds    []string `json:"nsqds"`
	Lookupds []string `json:"lookupds"`
	Switch   string   `json:"switch"`
	Together bool     `json:"together"`
	Requeue  *float64 `json:"requeue_delay"`
}

var failure = errors.New("the handler was told to fail")

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// The handler fails for poison, for half of the attempts, or while the switch exists.
func (order *Order) fails(number, kind string, attempts uint16) bool {
	if kind == "poison" {
		return true
	}
	if kind == "half" {
		return crc32.ChecksumIEEE([]byte(fmt.Sprintf("%s/%d", number, attempts)))&1 == 1
	}
	if order.Switch == "" {
		return false
	}
	_, err := os.Stat(order.Switch)
	return err == nil
}

func (order *Order) handler(topic string, out *os.File) nsq.Handler {
	return nsq.HandlerFunc(func(message *nsq.Message) error {
		now := time.Now().UnixNano()
		words := strings.Fields(string(message.Body))
		fails := order.fails(words[1], words[3], message.Attempts)
		ok := 1
		if fails {
			ok = 0
		}
		_, err := fmt.Fprintf(out, "%d %s %s %d %d\n",
			now, topic, string(message.Body), message.Attempts, ok)
		check(err)
		if fails {
			return failure
		}
		return nil
	})
}

func main() {
	var order Order
	check(json.Unmarshal([]byte(os.Args[1]), &order))
	out, err := os.OpenFile(order.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	check(err)
	config := nsq.NewConfig()
	if order.Requeue != nil {
		config.DefaultRequeueDelay = time.Duration(*order.Requeue * float64(time.Second))
	}
	for _, topic := range order.Topics {
		consumer, err := nsq.NewConsumer(topic, order.Channel, config)
		check(err)
		consumer.SetLogger(log.New(os.Stderr, "", log.LstdFlags), nsq.LogLevelWarning)
		consumer.AddHandler(order.handler(topic, out))
		if len(order.Nsqds) > 0 {
			check(consumer.ConnectToNSQDs(order.Nsqds))
		}
		if len(order.Lookupds) > 0 {
			check(consumer.ConnectToNSQLookupds(order.Lookupds))
		}
	}
	select {}
}
