//go:build tools

// Package gonsq names the two programs that the tests run, so that `go mod tidy` keeps what they need.
package gonsq

import (
	_ "github.com/nsqio/nsq/apps/nsqd"
	_ "github.com/nsqio/nsq/apps/nsqlookupd"
)
