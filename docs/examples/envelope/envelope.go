package envelope

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

// Open returns the headers and the body of what go-nsq has in message.Body.
func Open(data []byte) (map[string]string, []byte) {
	if len(data) < 8 || !bytes.HasPrefix(data, []byte("\xff\xffNH\x01")) {
		return nil, data
	}
	end := 7 + int(binary.BigEndian.Uint16(data[5:7]))
	if end >= len(data) {
		return nil, data
	}
	block, body := data[7:end], data[end:]
	parts := bytes.Split(block, []byte{0})
	headers := map[string]string{}
	for i := 0; i+1 < len(parts); i += 2 {
		headers[string(parts[i])] = string(parts[i+1])
	}
	if _, found := headers[""]; found || !utf8.Valid(block) || 2*len(headers) != len(parts) || len(parts) > 128 {
		return nil, body
	}
	return headers, body
}
