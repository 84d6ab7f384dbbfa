// The HTTP APIs of the nsqds and of nsqlookupd, as far as consumers use them, and three requests to
// nsqlookupd's port that steer this program: /sim/fill, /sim/rate and /sim/counts.
package main

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"
)

func answer(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-NSQ-Content-Type", "nsq; version=1.0")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(value)
}

func refuse(w http.ResponseWriter, code int, message string) {
	answer(w, code, map[string]string{"message": message})
}

func (n *nsqd) about() map[string]any {
	host := n.tcp.Addr().String()
	return map[string]any{
		"version": "1.3.0", "broadcast_address": "127.0.0.1", "hostname": "manynsqs-" + host,
		"http_port": port(n.http), "tcp_port": port(n.tcp), "start_time": 1700000000,
		"max_heartbeat_interval": 60000000000, "max_output_buffer_size": 65536,
		"max_output_buffer_timeout": 30000000000, "max_deflate_level": 6,
		"topology_zone": "", "topology_region": "",
	}
}

func (n *nsqd) api() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ping", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("OK")) })
	mux.HandleFunc("/info", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, n.about()) })
	mux.HandleFunc("/stats", n.stats)
	mux.HandleFunc("/topic/create", func(w http.ResponseWriter, r *http.Request) {
		n.topic(r.FormValue("topic"))
	})
	mux.HandleFunc("/channel/create", func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		known := n.topics[r.FormValue("topic")] != nil
		n.mu.Unlock()
		if !known {
			refuse(w, 404, "TOPIC_NOT_FOUND")
			return
		}
		n.channel(r.FormValue("topic"), r.FormValue("channel"))
	})
	mux.HandleFunc("/topic/delete", func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		delete(n.topics, r.FormValue("topic"))
		n.mu.Unlock()
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.world.count(&n.world.counts.Requests, 1)
		if n.silent {
			<-r.Context().Done()
			return
		}
		time.Sleep(n.world.delay)
		mux.ServeHTTP(w, r)
	})
}

func (n *nsqd) stats(w http.ResponseWriter, r *http.Request) {
	wantedTopic, wantedChannel := r.FormValue("topic"), r.FormValue("channel")
	topics := []map[string]any{}
	n.mu.Lock()
	for name, topic := range n.topics {
		if wantedTopic != "" && name != wantedTopic {
			continue
		}
		channels := []map[string]any{}
		for channelName, channel := range topic.channels {
			if wantedChannel == "" || channelName == wantedChannel {
				channels = append(channels, channel.stats(channelName))
			}
		}
		topics = append(topics, map[string]any{
			"topic_name": name, "channels": channels, "depth": 0, "backend_depth": 0,
			"message_count": 0, "message_bytes": 0, "paused": false,
			"e2e_processing_latency": map[string]any{"count": 0, "percentiles": nil},
		})
	}
	n.mu.Unlock()
	answer(w, 200, map[string]any{
		"version": "1.3.0", "health": "OK", "start_time": 1700000000, "topics": topics, "producers": []any{},
	})
}

func (w *world) api() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ping", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("OK")) })
	mux.HandleFunc("/info", func(out http.ResponseWriter, _ *http.Request) {
		answer(out, 200, map[string]string{"version": "1.3.0"})
	})
	mux.HandleFunc("/topic/create", func(_ http.ResponseWriter, r *http.Request) {
		w.register(r.FormValue("topic"), "")
	})
	mux.HandleFunc("/channel/create", func(_ http.ResponseWriter, r *http.Request) {
		w.register(r.FormValue("topic"), r.FormValue("channel"))
	})
	mux.HandleFunc("/lookup", w.lookup)
	mux.HandleFunc("/nodes", func(out http.ResponseWriter, _ *http.Request) {
		answer(out, 200, map[string]any{"producers": w.producers("")})
	})
	mux.HandleFunc("/sim/fill", func(out http.ResponseWriter, r *http.Request) {
		messages, ok := number(r.FormValue("messages"))
		if !ok {
			refuse(out, 400, "INVALID_MESSAGES")
			return
		}
		w.fill(r.FormValue("topic"), int(messages))
	})
	mux.HandleFunc("/sim/rate", func(out http.ResponseWriter, r *http.Request) {
		rate, ok := number(r.FormValue("rate"))
		if !ok {
			refuse(out, 400, "INVALID_RATE")
			return
		}
		w.mu.Lock()
		w.feeding[r.FormValue("topic")] = rate
		w.mu.Unlock()
	})
	mux.HandleFunc("/sim/counts", func(out http.ResponseWriter, _ *http.Request) {
		c := &w.counts
		answer(out, 200, map[string]int64{
			"delivered": atomic.LoadInt64(&c.Delivered), "finished": atomic.LoadInt64(&c.Finished),
			"requeued": atomic.LoadInt64(&c.Requeued), "refused": atomic.LoadInt64(&c.Refused),
			"published": atomic.LoadInt64(&c.Published), "requests": atomic.LoadInt64(&c.Requests),
			"connections":   atomic.LoadInt64(&c.Connections),
			"subscriptions": atomic.LoadInt64(&c.Subscriptions),
			"waiting":       w.waiting(),
		})
	})
	return mux
}

// register notes a name and, as the nsqds ask nsqlookupd for them, gives it to all nsqds.
func (w *world) register(topicName, channelName string) {
	w.mu.Lock()
	if w.channels[topicName] == nil {
		w.channels[topicName] = map[string]bool{}
	}
	if channelName != "" {
		w.channels[topicName][channelName] = true
	}
	w.mu.Unlock()
	for _, n := range w.nsqds {
		n.topic(topicName)
		if channelName != "" {
			n.channel(topicName, channelName)
		}
	}
}

func (w *world) lookup(out http.ResponseWriter, r *http.Request) {
	name := r.FormValue("topic")
	producers := w.producers(name)
	channels := []string{}
	w.mu.Lock()
	known := w.channels[name] != nil
	for channelName := range w.channels[name] {
		channels = append(channels, channelName)
	}
	w.mu.Unlock()
	if !known && len(producers) == 0 {
		refuse(out, 404, "TOPIC_NOT_FOUND")
		return
	}
	answer(out, 200, map[string]any{"channels": channels, "producers": producers})
}

// producers are the nsqds that have a topic, or all for "".
func (w *world) producers(topicName string) []map[string]any {
	found := []map[string]any{}
	for _, n := range w.nsqds {
		n.mu.Lock()
		has := topicName == "" || n.topics[topicName] != nil
		n.mu.Unlock()
		if has {
			about := n.about()
			about["remote_address"] = n.tcp.Addr().String()
			if topicName == "" {
				about["topics"], about["tombstones"] = []string{}, []bool{}
			}
			found = append(found, about)
		}
	}
	return found
}

func (w *world) waiting() int64 {
	var found int64
	for _, n := range w.nsqds {
		n.mu.Lock()
		for _, topic := range n.topics {
			for _, channel := range topic.channels {
				depth, inFlight := channel.depths()
				found += int64(depth + inFlight)
			}
		}
		n.mu.Unlock()
	}
	return found
}
