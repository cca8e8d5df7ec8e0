package h1

import (
	"net/http"
	"strconv"
)

// appendStatus adds the status line.
func appendStatus(b []byte, status int) []byte {
	if status == 200 {
		return append(b, "HTTP/1.1 200 OK\r\n"...)
	}
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + strconv.Itoa(status)
	}
	return append(append(b, text...), "\r\n"...)
}
