package h2

import (
	"bytes"
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

// FuzzSteady holds what is kept against a decoder of its own: the block after any other
// says what it would say to a decoder that keeps nothing.
func FuzzSteady(f *testing.F) {
	f.Add([]byte{0x40, 1, 'a', 1, '1'}, []byte{0xbe})
	f.Add([]byte{0x20, 0x83}, []byte{0x20, 0x3f, 0x11, 0x40, 1, 'a', 1, '1', 0xbe})
	f.Add([]byte{0x82, 0x20}, []byte{0x0f, 0x10, 0x02, 'v', 'w'})
	f.Fuzz(func(t *testing.T, one, two []byte) {
		kept, plain := newHeaderReader(1<<12), newHeaderReader(1<<12)
		for _, block := range [][]byte{one, one, two, two, one, two, one} {
			got, err := kept.read(block)
			plain.parsed = nil
			want, wantErr := plain.read(block)
			if (err != nil) != (wantErr != nil) {
				t.Fatalf("%x: %v, and without keeping %v", block, err, wantErr)
			}
			if err != nil {
				return
			}
			if len(got.fields) != len(want.fields) || got.path != want.path || got.malformed != want.malformed {
				t.Fatalf("%x: got %v, want %v", block, got.fields, want.fields)
			}
			for i := range got.fields {
				if got.fields[i] != want.fields[i] {
					t.Fatalf("%x: field %d: got %v, want %v", block, i, got.fields[i], want.fields[i])
				}
			}
		}
	})
}
