//go:build tools

// Package gonsq names the programs that the tests run, so that `go mod tidy` keeps what they need.
package gonsq

import (
	_ "github.com/nsqio/nsq/apps/nsq_stat"
	_ "github.com/nsqio/nsq/apps/nsq_tail"
	_ "github.com/nsqio/nsq/apps/nsq_to_file"
	_ "github.com/nsqio/nsq/apps/nsq_to_http"
	_ "github.com/nsqio/nsq/apps/nsq_to_nsq"
	_ "github.com/nsqio/nsq/apps/nsqadmin"
	_ "github.com/nsqio/nsq/apps/nsqd"
	_ "github.com/nsqio/nsq/apps/nsqlookupd"
	_ "github.com/nsqio/nsq/apps/to_nsq"
)
