package redis

import (
	"strings"
	"testing"
)

// TestRepliesAreFollowed: real replies pass, however they are cut, and their bounds begin anew
// with each.
func TestRepliesAreFollowed(t *testing.T) {
	text := strings.Repeat("+OK\r\n:1\r\n$-1\r\n*-1\r\n$3\r\na\nb\r\n$0\r\n\r\n"+
		"*2\r\n$1\r\n0\r\n*2\r\n$1\r\nx\r\n:7\r\n-ERR no\r\n", 200)
	text += strings.Repeat("*1\r\n:1\r\n", 2*maxLists)
	for _, step := range []int{1, 2, 3, 7, 1000, len(text)} {
		var r replies
		for at := 0; at < len(text); at += step {
			if err := r.scan([]byte(text[at:min(at+step, len(text))])); err != nil {
				t.Fatalf("in steps of %d, at %d: %v", step, at, err)
			}
		}
		if r.open != 0 || r.skip != 0 || r.size != 0 || r.lists != 0 || len(r.line) != 0 {
			t.Errorf("in steps of %d: %+v", step, r)
		}
	}
}

// FuzzReplies: what is found of a stream does not depend on how it is cut, and what is kept of
// it is bounded.
func FuzzReplies(f *testing.F) {
	f.Add("*2\r\n$1\r\n0\r\n*1\r\n:1\r\n", uint8(1))
	f.Add("$9223372036854775807\r\n", uint8(3))
	f.Add("*1\r\n*1\r\n*1048576\r\n*1\r\n", uint8(2))
	f.Fuzz(func(t *testing.T, text string, step uint8) {
		var whole, cut replies
		all := whole.scan([]byte(text))
		var err error
		for at := 0; at < len(text) && err == nil; at += int(step) + 1 {
			err = cut.scan([]byte(text[at:min(at+int(step)+1, len(text))]))
		}
		if (err == nil) != (all == nil) {
			t.Fatalf("as a whole %v, cut %v", all, err)
		}
		if err == nil && (whole.open != cut.open || whole.skip != cut.skip || whole.size != cut.size ||
			string(whole.line) != string(cut.line)) {
			t.Errorf("as a whole %+v, cut %+v", whole, cut)
		}
		if cut.elements > maxElements || cut.lists > maxLists || cut.skip > maxReply+2 || len(cut.line) > maxLine {
			t.Errorf("%+v", cut)
		}
	})
}

// BenchmarkReplies is a lookup's reply of 4 KiB.
func BenchmarkReplies(b *testing.B) {
	reply := []byte("$4096\r\n" + strings.Repeat("x", 4096) + "\r\n")
	b.ReportAllocs()
	var r replies
	for b.Loop() {
		if err := r.scan(reply); err != nil {
			b.Fatal(err)
		}
	}
}
