package h2

import (
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-serve/sluice/gateway/h2c"
)

// Each case is named after the section of RFC 7541 that it holds. good is a block of
// literals which depends on nothing.
func TestRFC7541(t *testing.T) {
	good := func() string {
		var b []byte
		fields := request()
		for i := 0; i < len(fields); i += 2 {
			b = appendField(b, fields[i], fields[i+1])
		}
		return string(b)
	}()
	block := func(b string) func(c *rawConn) {
		return func(c *rawConn) {
			c.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, b)
			c.must(c.fr.WriteData(1, true, message("x")))
		}
	}
	bad := "goaway COMPRESSION_ERROR"
	runRaw(t, []rawCase{
		{"2.3.2 an entry is added, and named by its index", func(c *rawConn) {
			c.frame(http2.FrameHeaders, 4|1, 1, good+"\x40\x02do\x04fail")
			c.frame(http2.FrameHeaders, 4, 3, good+"\xbe")
			c.must(c.fr.WriteData(3, true, message("x")))
		}, 3, "9: 100 %25 wrong: %C3%BC%0A"},
		{"2.3.3 index 0", block(good + "\x80"), 0, bad},
		{"2.3.3 an index past both tables", block(good + "\xbe"), 0, bad},
		{"2.3.3 a large index", block(good + "\xff\x80\x80\x04"), 0, bad},
		{"4.2 a size update first", block("\x20" + good), 0, "0 x"},
		{"4.2 two size updates first", block("\x20\x3f\xe1\x1f" + good), 0, "0 x"},
		{"4.2 a size update behind a field", block(good + "\x40\x01a\x01b\x20"), 0, bad},
		{"4.4 entries leave a table of size 0", func(c *rawConn) {
			c.frame(http2.FrameHeaders, 4|1, 1, good+"\x40\x02do\x04fail")
			c.frame(http2.FrameHeaders, 4, 3, "\x20"+good+"\xbe")
		}, 3, bad},
		{"4.4 an entry larger than the table", func(c *rawConn) {
			c.frame(http2.FrameHeaders, 4|1, 1, "\x3f\x21"+good+"\x40\x01a"+string(h2c.AppendInt(nil, 70))+strings.Repeat("b", 70))
			c.frame(http2.FrameHeaders, 4, 3, good+"\xbe")
		}, 3, bad},
		{"5.1 an integer that overflows", block(good + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), 0, bad},
		{"5.1 an integer that does not end", block(good + "\xff\x80"), 0, bad},
		{"5.2 a string longer than its block", block(good + "\x00\x05ab"), 0, bad},
		{"5.2 Huffman padding longer than 7 bits", block(good + "\x00\x01a\x82\x1f\xff"), 0, bad},
		{"5.2 Huffman padding of zeroes", block(good + "\x00\x01a\x81\x18"), 0, bad},
		{"5.2 Huffman with EOS", block(good + "\x00\x01a\x84\xff\xff\xff\xff"), 0, bad},
		{"5.2 Huffman", block(good + "\x00\x01a" + string(append([]byte{0x80 | byte(hpack.HuffmanEncodeLength("custom-value"))}, hpack.AppendHuffmanString(nil, "custom-value")...))), 0, "0 x"},
		{"6.2.3 never indexed", block(good + "\x10\x01a\x01b"), 0, "0 x"},
		{"6.3 a size update over SETTINGS_HEADER_TABLE_SIZE", block("\x3f\xe2\x1f" + good), 0, bad},
		{"a string over the header limit", block(good + "\x00\x01a" + string(h2c.AppendInt(nil, 65537))), 0, bad},
	})
}

// TestIndexedBlocksAreRead sees that a kept block does not outlive the table that it
// was read with.
func TestIndexedBlocksAreRead(t *testing.T) {
	f := start(t, nil)
	c := hello(t, f)
	c.enc.SetMaxDynamicTableSize(4096)
	for id, want := uint32(1), "0 x"; id < 20; id += 2 { // from the second on, one kept block
		c.call(id, "x")
		if got := c.outcome(id); got != want {
			t.Fatalf("stream %d: %s", id, got)
		}
	}
	indexed := string(c.block(request()...))
	if steady, _ := newHeaderReader(1 << 12).survey([]byte(indexed)); !steady {
		t.Fatalf("the block is not steady: %x", indexed)
	}
	c.call(21, "x", "do", "fail") // adds an entry, so that each index names another one
	if got := c.outcome(21); !strings.HasPrefix(got, "9: ") {
		t.Errorf("with a field more: %s", got)
	}
	c.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 23, indexed)
	c.must(c.fr.WriteData(23, true, message("x")))
	if got := c.outcome(23); got == "0 x" {
		t.Errorf("the old block: %s", got)
	}
}
