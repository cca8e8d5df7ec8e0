package h2

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// encode encodes fields as literals that are never indexed.
func encode(t *testing.T, fields ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		if err := e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1], Sensitive: true}); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestSteady(t *testing.T) {
	for _, c := range []struct {
		name  string
		block []byte
		want  bool
	}{
		{"indexed", []byte{0x83, 0x86, 0xbf}, true},
		{"indexed by a long number", []byte{0xff, 0x80, 0x01, 0x83}, true},
		{"never indexed, Huffman-coded", encode(t, ":path", "/a.B/C", "x-test", "value"), true},
		{"not indexed, long", append([]byte{0x00, 0x01, 'a', 0x7f, 0x03}, bytes.Repeat([]byte{'v'}, 130)...), true},
		{"not indexed, named by the table", []byte{0x0f, 0x10, 0x02, 'v', 'w', 0x83}, true},
		{"added to the table", []byte{0x83, 0x40, 0x01, 'a', 0x01, 'b'}, false},
		{"added under a known name", []byte{0x44, 0x02, '/', 'x'}, false},
		{"a number that goes on", []byte{0x00, 0x01, 'a', 0x7f, 0x80, 0x80, 0x80, 0x80, 0x00, 0x40, 0x01, 'b', 0x01, 'c'}, false},
		{"new size of the table", []byte{0x20, 0x83}, false},
	} {
		if got, _ := newHeaderReader(1 << 12).survey(c.block); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	// some clients say the table's size again with every block
	r := newHeaderReader(1 << 12)
	for i, c := range []struct {
		block []byte
		want  bool
	}{{[]byte{0x20, 0x83}, false}, {[]byte{0x20, 0x83}, true}, {[]byte{0x83}, true}, {[]byte{0x20, 0x25, 0x83}, false},
		{[]byte{0x20, 0x83}, false}, {[]byte{0x20, 0x83}, true}, {[]byte{0x40, 1, 'a', 1, '1'}, false}, {[]byte{0x20, 0x83}, false}} {
		if got, _ := r.survey(c.block); got != c.want {
			t.Errorf("block %d, %x: got %v, want %v", i, c.block, got, c.want)
		}
	}
}

// TestHeadersAreKeptOnlyWhileTheyHold sees that a block which names an entry of the
// table is read again when the table has changed.
func TestHeadersAreKeptOnlyWhileTheyHold(t *testing.T) {
	r := newHeaderReader(1 << 16)
	read := func(block []byte) *header {
		t.Helper()
		h, err := r.read(block)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	read([]byte{0x40, 0x01, 'a', 0x01, '1'}) // entry 62 is a: 1
	first := read([]byte{0xbe})
	if again := read([]byte{0xbe}); again != first || first.get("a") != "1" {
		t.Fatalf("got %q, the same %v", again.get("a"), again == first)
	}
	read([]byte{0x40, 0x01, 'a', 0x01, '2'}) // now it is a: 2
	if h := read([]byte{0xbe}); h.get("a") != "2" {
		t.Errorf("got %q, want 2", h.get("a"))
	}
}

// TestHeadersSaidAgain sends what clients send, with an encoder that keeps a table of changing
// size: what is recognized from the call before is what a decoder that keeps nothing reads.
func TestHeadersSaidAgain(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	one := func(of ...string) string { return of[draw.IntN(len(of))] }
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	kept, plain := newHeaderReader(1<<12), newHeaderReader(1<<12)
	again, last := 0, (*header)(nil)
	for i := range 5000 {
		fields := [][2]string{{":method", "POST"}, {":path", one("/a.B/C", "/a.B/C", "/a.B/C", "/a.B/D")}, {":scheme", "http"}}
		if draw.IntN(20) > 0 {
			fields = append(fields, [2]string{":authority", "a"})
		}
		fields = append(fields, [2]string{"content-type", "application/grpc"}, [2]string{"te", one("trailers", "trailers", "trailers", "gzip")})
		if draw.IntN(3) > 0 {
			fields = append(fields, [2]string{timeoutName, one("1S", "999m", "123456u", "9", "1x", "99999999H", "0n")})
		}
		for range draw.IntN(20) / 17 {
			fields = append(fields, [2]string{one("x-a", "x-b", timeoutName, "x-bin"), one("1S", "MQ", "~")})
		}
		switch b.Reset(); draw.IntN(50) {
		case 0:
			e.SetMaxDynamicTableSize(uint32(draw.IntN(300)))
		case 1:
			e.SetMaxDynamicTableSize(tableSize)
		}
		for _, f := range fields {
			if err := e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: draw.IntN(200) == 0}); err != nil {
				t.Fatal(err)
			}
		}
		got, err := kept.read(b.Bytes())
		plain.parsed, plain.last = nil, nil
		want, wantErr := plain.read(b.Bytes())
		if err != nil || wantErr != nil {
			t.Fatal(i, err, wantErr)
		}
		if !reflect.DeepEqual(got, want) || kept.timed != plain.timed || kept.timeout != plain.timeout {
			t.Fatalf("call %d, %q: got %+v in %v, want %+v in %v", i, fields, got, kept.timeout, want, plain.timeout)
		}
		if got == last {
			again++
		}
		last = got
	}
	if again < 300 {
		t.Errorf("%d of 5000 calls were recognized", again)
	}
}

// TestTimeoutsAreTheirCalls sees that calls which share a head have each their own timeout.
func TestTimeoutsAreTheirCalls(t *testing.T) {
	r := newHeaderReader(1 << 12)
	var first *header
	for i, timeout := range []string{"1S", "1S", "250m", "", "2S"} {
		fields := []string{":method", "POST", ":path", "/a.B/C", ":scheme", "http", "te", "trailers"}
		if timeout != "" {
			fields = append(fields, timeoutName, timeout)
		}
		h, err := r.read(encode(t, fields...))
		if err != nil {
			t.Fatal(err)
		}
		want, _ := parseTimeout(timeout) // "" is none
		if r.timeout != want || r.timed != (timeout != "") {
			t.Errorf("call %d: got %v, want %v", i, r.timeout, want)
		}
		if first == nil {
			first = h
		}
		if i < 3 && h != first {
			t.Errorf("call %d was decoded anew", i)
		}
	}
}

// FuzzSteady holds what is kept against a decoder of its own: the block after any other
// says what it would say to a decoder that keeps nothing.
func FuzzSteady(f *testing.F) {
	f.Add([]byte{0x40, 1, 'a', 1, '1'}, []byte{0xbe})
	f.Add([]byte{0x20, 0x83}, []byte{0x20, 0x3f, 0x11, 0x40, 1, 'a', 1, '1', 0xbe})
	f.Add([]byte{0x82, 0x20}, []byte{0x0f, 0x10, 0x02, 'v', 'w'})
	begin := []byte{0x83, 0x86, 0x44, 2, '/', 'x', 0x40, 12, 'g', 'r', 'p', 'c', '-', 't', 'i', 'm', 'e', 'o', 'u', 't', 2, '1', 'S'}
	f.Add(begin, []byte{0x83, 0x86, 0xbf, 0x7e, 2, '2', 'S'})
	f.Add(begin, []byte{0x83, 0x86, 0xbf, 0x0f, 0x2f, 2, '2', 'x', 0x20})
	f.Fuzz(func(t *testing.T, one, two []byte) {
		kept, plain := newHeaderReader(1<<12), newHeaderReader(1<<12)
		for _, block := range [][]byte{one, one, two, two, one, two, one} {
			got, err := kept.read(block)
			plain.parsed, plain.last = nil, nil
			want, wantErr := plain.read(block)
			if (err != nil) != (wantErr != nil) {
				t.Fatalf("%x: %v, and without keeping %v", block, err, wantErr)
			}
			if err != nil {
				return
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%x: got %+v, want %+v", block, got, want)
			}
			if kept.timed != plain.timed || kept.timeout != plain.timeout {
				t.Fatalf("%x: got the timeout %v, %v, want %v, %v", block, kept.timeout, kept.timed, plain.timeout, plain.timed)
			}
		}
	})
}

// BenchmarkHeaders is one call's head of a client whose encoder keeps a table: the same
// each time, and with a deadline, which makes every block another one.
func BenchmarkHeaders(b *testing.B) {
	for name, timed := range map[string]bool{"same": false, "timed": true} {
		var buf bytes.Buffer
		e := hpack.NewEncoder(&buf)
		blocks := make([][]byte, 500)
		for i := range blocks {
			fields := request("user-agent", "grpc-go/1.70.0")
			if timed {
				fields = append(fields, timeoutName, strconv.Itoa(900000+i)+"u")
			}
			buf.Reset()
			for k := 0; k < len(fields); k += 2 {
				if err := e.WriteField(hpack.HeaderField{Name: fields[k], Value: fields[k+1]}); err != nil {
					b.Fatal(err)
				}
			}
			blocks[i] = bytes.Clone(buf.Bytes())
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var r *headerReader
			for i := 0; b.Loop(); i++ {
				if i%len(blocks) == 0 {
					r = newHeaderReader(64 << 10)
				}
				if _, err := r.read(blocks[i%len(blocks)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
