module gnsqsync/tests/bench

go 1.17

require (
	github.com/nsqio/go-nsq v1.1.0
	github.com/nsqio/nsq v1.3.0
)

require github.com/golang/snappy v0.0.4 // indirect

// nsq's own go.mod has this line; a replace counts only in the main module, so it is repeated here.
replace github.com/judwhite/go-svc => github.com/mreiferson/go-svc v1.2.2-0.20210815184239-7a96e00010f6
