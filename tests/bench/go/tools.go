//go:build tools

// Package bench names nsq's own benchmarks, so that `go mod tidy` keeps what they need.
package bench

import (
	_ "github.com/nsqio/nsq/bench/bench_reader"
	_ "github.com/nsqio/nsq/bench/bench_writer"
)
