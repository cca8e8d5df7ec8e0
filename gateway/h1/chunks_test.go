package h1

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A body has at most 65536 chunks with something in them, as in the original.
func TestMaxChunks(t *testing.T) {
	addr, _, _ := start(t, nil)
	for n, want := range map[int]bool{maxChunks: true, maxChunks + 1: false} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		head := "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
		if _, err := fmt.Fprint(c, head, strings.Repeat("1\r\nx\r\n", n), "0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := res.StatusCode == http.StatusOK; got != want {
			t.Errorf("%d chunks: status %d", n, res.StatusCode)
		}
		if err := res.Body.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
