package json

import (
	"bytes"
	"encoding/binary"
	stdjson "encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluice-serve/sluice/infer"
)

// walk reads a whole document.
func walk(doc []byte) error {
	var s Scanner
	s.Reset(doc)
	if err := s.Empty(); err != nil {
		return err
	}
	if err := s.Skip(); err != nil {
		return err
	}
	return s.End()
}

func TestSyntax(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		{"", "The document is empty. at 0"},
		{" \n", "The document is empty. at 2"},
		{"{}", ""},
		{"\ufeff{}", ""},
		{"{}\x00x", ""}, // a NUL ends the document
		{"{} x", "The document root must not be followed by other values. at 3"},
		{"tru", "Invalid value. at 3"},
		{"nope", "Invalid value. at 1"},
		{`{"a":1,}`, "Missing a name for object member. at 7"},
		{`{,}`, "Missing a name for object member. at 1"},
		{`[1,]`, "Invalid value. at 3"},
		{`[,]`, "Invalid value. at 1"},
		{`{"a" 1}`, "Missing a colon after a name of object member. at 5"},
		{`{"a":1]`, "Missing a comma or '}' after an object member. at 6"},
		{`[1}`, "Missing a comma or ']' after an array element. at 2"},
		{`[[[1],{"a":[]}]]`, ""},
		{`"\ud800x"`, "The surrogate pair in string is invalid. at 1"},
		{`"\u12"`, "Incorrect hex digit after \\u escape in string. at 1"},
		{`"\x"`, "Invalid escape character in string. at 1"},
		{"\"\t\"", "Invalid escape character in string. at 1"},
		{`"`, "Missing a closing quotation mark in string. at 1"},
		{`1.`, "Miss fraction part in number. at 2"},
		{`1e+`, "Miss exponent in number. at 3"},
		{`[1e309]`, "Number too big to be stored in double. at 1"},
		{"[" + strings.Repeat("9", 400) + "]", "Number too big to be stored in double. at 1"},
		{`1e-999`, ""},
		{`-`, "Invalid value. at 1"},
		{`[NaN,Inf,-Infinity]`, ""},
		{`Infinite`, "Invalid value. at 7"},
		{strings.Repeat("[", 100) + strings.Repeat("]", 100), ""},
		{strings.Repeat("[", 101), TooDeep + " at 100"},
		{strings.Repeat(`{"a":`, 101), TooDeep + " at 500"},
	} {
		got := ""
		if err := walk([]byte(c.doc)); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: got %q, want %q", c.doc, got, c.want)
		}
	}
}

func tensor(doc string, d infer.Datatype, limit int64) ([]byte, int64, error) {
	var s Scanner
	s.Reset([]byte(doc))
	b, n, err := s.AppendTensor(nil, d, limit)
	if err == nil {
		err = s.End()
	}
	return b, n, err
}

func TestTensorLimits(t *testing.T) {
	limits := map[infer.Datatype][2]string{
		infer.Int8: {"-128", "127"}, infer.Uint8: {"0", "255"}, infer.Int16: {"-32768", "32767"}, infer.Uint16: {"0", "65535"},
		infer.Int32: {"-2147483648", "2147483647"}, infer.Uint32: {"0", "4294967295"},
		infer.Int64: {"-9223372036854775808", "9223372036854775807"}, infer.Uint64: {"0", "18446744073709551615"},
	}
	for d, l := range limits {
		doc := "[" + l[0] + "," + l[1] + "]"
		b, n, err := tensor(doc, d, 9)
		if err != nil || n != 2 || int64(len(b)) != 2*d.Size() {
			t.Fatalf("%s %s: %d elements, %v", d, doc, n, err)
		}
		if back, ok := AppendData(nil, d, b); !ok || string(back) != doc {
			t.Errorf("%s: %s came back as %s", d, doc, back)
		}
		// one more digit, and one more than the most
		for _, over := range []string{l[1] + "0", "-" + strings.TrimPrefix(l[0], "-") + "9"} {
			if _, _, err := tensor("["+over+"]", d, 9); err == nil {
				t.Errorf("%s: %s was taken", d, over)
			}
		}
	}
}

func TestTensorCounts(t *testing.T) {
	for _, c := range []struct {
		doc   string
		d     infer.Datatype
		limit int64
		n     int64
		bytes int
	}{
		{`[[1,2],[3,[4]],[]]`, infer.Int32, 4, 4, 16},
		{`[1,2,3,"x"]`, infer.Int32, 2, 4, 8}, // what is too much is counted, not kept
		{`[]`, infer.FP32, 0, 0, 0},
		{`["a\n",["bc"]]`, infer.Bytes, 99, 2, 12},
		{`[true,[false]]`, infer.Bool, 2, 2, 2},
	} {
		b, n, err := tensor(c.doc, c.d, c.limit)
		if err != nil || n != c.n || len(b) != c.bytes {
			t.Errorf("%s: got %d elements in %d bytes, %v; want %d in %d", c.doc, n, len(b), err, c.n, c.bytes)
		}
	}
}

func TestTensorFaultsLeaveTheScannerBehind(t *testing.T) {
	for _, c := range []struct {
		doc, want string
		d         infer.Datatype
	}{
		{`[[1,"x"],{"a":[]}]`, NotInt, infer.Int8},
		{`[1,2.5]`, NotUint, infer.Uint8},
		{`[1,null]`, NotNumber, infer.FP32},
		{`{"a":1}`, NotArray, infer.FP32},
		{`[1]`, NotString, infer.Bytes},
		{`[0]`, NotBool, infer.Bool},
		{`[99999999999999999999]`, NotInt, infer.Int64},
		{`[300]`, "value 300 is out of range for UINT8", infer.Uint8},
		{`[1,-1e300]`, "value -1e300 is out of range for FP32", infer.FP32},           // an infinity would be no JSON on the way back
		{`[1,"x"`, "Missing a comma or ']' after an array element. at 6", infer.Int8}, // syntax goes first
	} {
		var s Scanner
		s.Reset([]byte(c.doc))
		_, _, err := s.AppendTensor(nil, c.d, 100)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s as %s: got %v, want %s", c.doc, c.d, err, c.want)
			continue
		}
		var e *Error
		if errors.As(err, &e) && !e.Syntax {
			if err := s.End(); err != nil {
				t.Errorf("%s: the scanner does not stand behind the value: %v", c.doc, err)
			}
		}
	}
}

func TestFloats(t *testing.T) {
	for _, c := range []struct {
		f    float64
		bits int
		want string
	}{
		{0, 64, "0.0"}, {math.Copysign(0, -1), 64, "-0.0"}, {1, 64, "1.0"}, {-1.5, 64, "-1.5"}, {1e21, 64, "1e21"}, {1e20, 64, "100000000000000000000.0"},
		{1e-6, 64, "0.000001"}, {9.9e-7, 64, "9.9e-7"}, {1e-7, 64, "1e-7"}, {1e22, 64, "1e22"}, {1.5e300, 64, "1.5e300"},
		{math.MaxFloat64, 64, "1.7976931348623157e308"}, {5e-324, 64, "5e-324"}, {0.1, 64, "0.1"}, {1 << 53, 64, "9007199254740992.0"},
		{float64(float32(0.1)), 32, "0.1"}, {math.NaN(), 64, "NaN"}, {math.Inf(1), 32, "Infinity"}, {math.Inf(-1), 64, "-Infinity"},
	} {
		if got := string(AppendFloat(nil, c.f, c.bits)); got != c.want {
			t.Errorf("%g: got %s, want %s", c.f, got, c.want)
		}
	}
}

func TestSeek(t *testing.T) {
	var s Scanner
	s.Reset([]byte(`{"a":[1,2],"b":3}`))
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	if key, ok, err := s.Key(); string(key) != "a" || !ok || err != nil {
		t.Fatal(string(key), ok, err)
	}
	m := s.Mark()
	if err := s.Skip(); err != nil {
		t.Fatal(err)
	}
	end := s.Mark()
	s.Seek(m)
	if b, n, err := s.AppendTensor(nil, infer.Int8, 9); n != 2 || err != nil || !bytes.Equal(b, []byte{1, 2}) {
		t.Fatal(b, n, err)
	}
	s.Seek(end)
	if key, ok, err := s.Key(); string(key) != "b" || !ok || err != nil {
		t.Fatal(string(key), ok, err)
	}
}

// FuzzSyntax holds the scanner against encoding/json: what that takes we take, what we
// take beyond it is one of the extensions.
func FuzzSyntax(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e3,"x\u00e9\ud83d\ude00",true,null]}`, `[[],{},""]`, "[NaN]", "\xef\xbb\xbf1", `"\ud800"`, "1\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		err := walk(doc)
		valid := stdjson.Valid(doc)
		if err != nil && valid {
			var e *Error
			if !errors.As(err, &e) || e.Text != textBig && e.Text != TooDeep && e.Text != textPair {
				t.Fatalf("%q: %v", doc, err)
			}
		}
		if err == nil && !valid {
			plain := bytes.TrimPrefix(doc, []byte("\xef\xbb\xbf"))
			plain, _, _ = bytes.Cut(plain, []byte{0})
			for _, r := range []string{"-NaN", "-Infinity", "-Inf", "NaN", "Infinity", "Inf"} {
				plain = bytes.ReplaceAll(plain, []byte(r), []byte("0"))
			}
			if !stdjson.Valid(plain) {
				t.Fatalf("%q was taken", doc)
			}
		}
	})
}

// FuzzTensor holds numbers and strings against encoding/json and strconv.
func FuzzTensor(f *testing.F) {
	for _, s := range []string{"[1,2.5,-3e-7]", "[123456789012345678901234567890]", `["a","\n\u0041"]`, "[0.1e23,1e22,4.9e-324]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		var want []float64
		if b, n, err := tensor(string(doc), infer.FP64, math.MaxInt64); err == nil && stdjson.Unmarshal(doc, &want) == nil &&
			!bytes.Contains(doc, []byte("null")) {
			if n != int64(len(want)) {
				t.Fatalf("%q: %d elements, want %d", doc, n, len(want))
			}
			for i, w := range want {
				got := math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
				if got != w {
					t.Fatalf("%q: element %d is %g, want %g", doc, i, got, w)
				}
				back, err := strconv.ParseFloat(string(AppendFloat(nil, got, 64)), 64)
				if err != nil || back != got {
					t.Fatalf("%g came back as %g, %v", got, back, err)
				}
			}
		}
		var ints []int16
		if b, n, err := tensor(string(doc), infer.Int16, math.MaxInt64); err == nil {
			if e := stdjson.Unmarshal(doc, &ints); e == nil && n == int64(len(ints)) {
				for i, w := range ints {
					if got := int16(binary.LittleEndian.Uint16(b[2*i:])); got != w {
						t.Fatalf("%q: element %d is %d, want %d", doc, i, got, w)
					}
				}
			}
		}
		var strs []string
		if b, _, err := tensor(string(doc), infer.Bytes, math.MaxInt64); err == nil {
			back, ok := AppendData(nil, infer.Bytes, b)
			if !ok {
				t.Fatalf("%q: data does not print", doc)
			}
			again, _, err := tensor(string(back), infer.Bytes, math.MaxInt64)
			if err != nil || !bytes.Equal(again, b) {
				t.Fatalf("%q: came back as %q, %v", doc, back, err)
			}
			if utf8.Valid(doc) && !bytes.Contains(doc, []byte(`\u`)) && stdjson.Unmarshal(doc, &strs) == nil {
				at := 0
				for _, w := range strs {
					l := int(binary.LittleEndian.Uint32(b[at:]))
					if string(b[at+4:at+4+l]) != w {
						t.Fatalf("%q: got %q, want %q", doc, b[at+4:at+4+l], w)
					}
					at += 4 + l
				}
			}
		}
	})
}

func floats(n int) []byte {
	b := []byte{'['}
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, float64(float32(math.Sin(float64(i)))), 'g', -1, 32)
	}
	return append(b, ']')
}

func BenchmarkTensorFloats512(b *testing.B) {
	doc := floats(512)
	b.Run("scanner", func(b *testing.B) {
		var s Scanner
		dst := make([]byte, 0, 4096)
		b.SetBytes(int64(len(doc)))
		b.ReportAllocs()
		for b.Loop() {
			s.Reset(doc)
			if _, n, err := s.AppendTensor(dst, infer.FP32, 512); n != 512 || err != nil {
				b.Fatal(n, err)
			}
		}
	})
	b.Run("encoding", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		b.ReportAllocs()
		for b.Loop() {
			var v []float32
			if err := stdjson.Unmarshal(doc, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAppendFloats512(b *testing.B) {
	data, _, err := tensor(string(floats(512)), infer.FP32, 512)
	if err != nil {
		b.Fatal(err)
	}
	values := make([]float32, 512)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	b.Run("writer", func(b *testing.B) {
		dst := make([]byte, 0, 16<<10)
		b.ReportAllocs()
		for b.Loop() {
			AppendData(dst, infer.FP32, data)
		}
	})
	b.Run("encoding", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := stdjson.Marshal(values); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// An array that ends with the document at its bracket is no deeper for it.
func TestTensorCutShort(t *testing.T) {
	for _, c := range []struct{ doc, want string }{{"[", "Invalid value. at 1"}, {"[1,[", "Invalid value. at 4"}, {"[ ", "Invalid value. at 2"}} {
		var s Scanner
		s.Reset([]byte(c.doc))
		if _, _, err := s.AppendTensor(nil, infer.Int32, 9); err == nil || err.Error() != c.want {
			t.Errorf("%q: got %v, want %s", c.doc, err, c.want)
		}
	}
}

// A fault quotes no more of a number than a reader of it needs.
func TestLongNumberIsCut(t *testing.T) {
	var s Scanner
	s.Reset([]byte("[1." + strings.Repeat("0", 1<<20) + "e39]"))
	_, _, err := s.AppendTensor(nil, infer.FP32, 9)
	if err == nil || len(err.Error()) > 200 || !strings.HasSuffix(err.Error(), "... is out of range for FP32") {
		t.Errorf("got %.200v", err)
	}
}

// TestResetGivesMemoryBack sees that a scanner that is kept does not keep what one document of
// many escapes took.
func TestResetGivesMemoryBack(t *testing.T) {
	var s Scanner
	s.Reset([]byte(`{"\u0041` + strings.Repeat("x", 1<<20) + `":1}`))
	if err := s.Skip(); err != nil {
		t.Fatal(err)
	}
	if cap(s.buf) < 1<<20 {
		t.Fatalf("the name was unescaped into %d bytes", cap(s.buf))
	}
	s.Reset(nil)
	if cap(s.buf) > keepBuf {
		t.Errorf("%d bytes are kept", cap(s.buf))
	}
}
