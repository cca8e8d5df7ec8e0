package json

import (
	"encoding/binary"
	stdjson "encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// kind is a datatype with its Go type, for encoding/json, and values as they are written.
type kind struct {
	d      infer.Datatype
	slice  any // pointer to a slice of it
	values []string
}

var kinds = []kind{
	{infer.Bool, &[]bool{}, []string{"true", "false"}},
	{infer.Int8, &[]int8{}, []string{"-128", "-1", "0", "127"}},
	{infer.Int16, &[]int16{}, []string{"-32768", "-1", "0", "32767"}},
	{infer.Int32, &[]int32{}, []string{"-2147483648", "-1", "0", "2147483647"}},
	{infer.Int64, &[]int64{}, []string{"-9223372036854775808", "-1", "0", "9007199254740993", "9223372036854775807"}},
	{infer.Uint8, &[]uint16{}, []string{"0", "255"}}, // as []uint16: encoding/json takes bytes for base64
	{infer.Uint16, &[]uint16{}, []string{"0", "65535"}},
	{infer.Uint32, &[]uint32{}, []string{"0", "4294967295"}},
	{infer.Uint64, &[]uint64{}, []string{"0", "9223372036854775808", "18446744073709551615"}},
	{infer.FP32, &[]float32{}, []string{"0.0", "-0.0", "1.0", "-1.5", "0.1", "1e-7", "3.4028235e38", "1e-45", "1.1754944e-38", "16777216.0", "-0.33333334"}},
	{infer.FP64, &[]float64{}, []string{"0.0", "-0.0", "1.0", "-1.5", "0.1", "5e-324", "2.2250738585072014e-308", "1.7976931348623157e308", "0.30000000000000004", "1e21"}},
	{infer.Bytes, &[]string{}, []string{`""`, `"plain"`, `"\"\\\/\b\f\n\r\t"`, `"\u00e9\ud83d\ude00"`, `"ü"`}},
}

// TestRoundTrips sees that what is written of every datatype is read back bit by bit, and
// is written as it was read.
func TestRoundTrips(t *testing.T) {
	for _, k := range kinds {
		doc := "[" + strings.Join(k.values, ",") + "]"
		b, n, err := tensor(doc, k.d, math.MaxInt64)
		if err != nil || n != int64(len(k.values)) {
			t.Errorf("%s: %d elements, %v", k.d, n, err)
			continue
		}
		out, ok := AppendData(nil, k.d, b)
		if !ok || k.d != infer.Bytes && string(out) != doc {
			t.Errorf("%s: %s came back as %s", k.d, doc, out)
		}
		again, _, err := tensor(string(out), k.d, math.MaxInt64)
		if err != nil || string(again) != string(b) {
			t.Errorf("%s: %s is read as %x, want %x, %v", k.d, out, again, b, err)
		}
		if k.d != infer.Uint8 {
			if err := stdjson.Unmarshal(out, reflect.New(reflect.TypeOf(k.slice).Elem()).Interface()); err != nil {
				t.Errorf("%s: %s is not for encoding/json: %v", k.d, out, err)
			}
		}
	}
}

// TestRefusals sees what no datatype takes for granted.
func TestRefusals(t *testing.T) {
	for d, docs := range map[infer.Datatype][]string{
		infer.Bool:   {"1", "0", `"true"`, "null", "True"},
		infer.Int8:   {"128", "-129", "1.0", "1e0", "true", `"1"`, "null", "NaN"},
		infer.Int16:  {"32768", "-32769", "0.5"},
		infer.Int32:  {"2147483648", "-2147483649", "1e3"},
		infer.Int64:  {"9223372036854775808", "-9223372036854775809", "99999999999999999999", "01", "+1", "1_000", "0x10"},
		infer.Uint8:  {"256", "-1"},
		infer.Uint16: {"65536", "-1"},
		infer.Uint32: {"4294967296", "-1"},
		infer.Uint64: {"18446744073709551616", "-1", "1e19", "Infinity"},
		infer.FP32:   {"3.4028236e38", "-1e39", "1e400", "true", `"1"`, "null", ".5", "1.", "1e", "--1"},
		infer.FP64:   {"1e309", "-1e309", "null", "1e+"},
		infer.Bytes:  {"1", "null", "true", `"\x"`, `"\ud800"`, "\"\n\"", `"a`},
		infer.FP16:   {"1"},
		infer.BF16:   {"1"},
	} {
		for _, doc := range docs {
			if b, n, err := tensor("["+doc+"]", d, 9); err == nil {
				t.Errorf("%s: %s was taken as %x, %d elements", d, doc, b, n)
			}
		}
	}
}

// TestSinglesAreRoundedOnce has numbers that lie so near the middle of two singles that a
// double holds the middle alone.
func TestSinglesAreRoundedOnce(t *testing.T) {
	middles := []float64{1 + 0x1p-24, 1 + 3*0x1p-24, 0x1p100 + 0x1p76, 0x1p-126 + 0x1p-150, 0x1p-149 * 1.5, 0x1p-149 * 0.5, math.MaxFloat32 + 0x1p103}
	for _, m := range middles {
		full := fmt.Sprintf("%.1000f", m) // every digit that a double has
		for _, doc := range []string{full, full + "1", "-" + full + "1", justBelow(full)} {
			want, err := strconv.ParseFloat(doc, 32)
			b, _, got := tensor("["+doc+"]", infer.FP32, 1)
			if (err == nil) != (got == nil) {
				t.Errorf("%.60s…: %v, want %v", doc, got, err)
				continue
			}
			if err == nil && math.Float32frombits(binary.LittleEndian.Uint32(b)) != float32(want) {
				t.Errorf("%.60s…: got %x, want %x", doc, math.Float32frombits(binary.LittleEndian.Uint32(b)), float32(want))
			}
		}
	}
}

// justBelow is a text of a number a little below that of digits, which has a fraction.
func justBelow(digits string) string {
	b := []byte(strings.TrimRight(digits, "0"))
	if b[len(b)-1] == '.' { // an integer: borrow from its last digits
		for i := len(b) - 2; i >= 0; i-- {
			if b[i] > '0' {
				b[i]--
				break
			}
			b[i] = '9'
		}
		return string(b) + "9999999999"
	}
	b[len(b)-1]--
	return string(b) + "9999999999"
}

// TestSinglesComeBack sees that a single's shortest text is read as that single.
func TestSinglesComeBack(t *testing.T) {
	bits := uint32(1)
	for range 200000 {
		bits = bits*1664525 + 1013904223
		f := math.Float32frombits(bits)
		if f != f || math.IsInf(float64(f), 0) {
			continue
		}
		text := string(AppendFloat(nil, float64(f), 32))
		b, _, err := tensor("["+text+"]", infer.FP32, 1)
		if err != nil || binary.LittleEndian.Uint32(b) != bits {
			t.Fatalf("%x is written %s and read %x, %v", bits, text, b, err)
		}
	}
}

// many is a document with n elements of a kind, some of them nested, and their data.
func (k *kind) many(t testing.TB, n int) (doc, data []byte) {
	var b strings.Builder
	b.WriteString("[[")
	for i := range n {
		if i > 0 {
			b.WriteString([]string{",", ", ", ",\n"}[i%3])
		}
		b.WriteString(k.values[i%len(k.values)])
	}
	b.WriteString("],[]]")
	data, _, err := tensor(b.String(), k.d, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(b.String()), data
}

// TestAllocations sees that neither reading nor writing allocates, whatever the datatype.
func TestAllocations(t *testing.T) {
	for _, k := range kinds {
		doc, data := k.many(t, 1000)
		var s Scanner
		dst := make([]byte, 0, 64<<10)
		if n := testing.AllocsPerRun(20, func() {
			s.Reset(doc)
			if _, n, err := s.AppendTensor(dst, k.d, math.MaxInt64); n != 1000 || err != nil {
				t.Fatal(n, err)
			}
		}); n > 0 {
			t.Errorf("reading 1000 elements of %s: %v allocations", k.d, n)
		}
		if n := testing.AllocsPerRun(20, func() {
			if _, ok := AppendData(dst, k.d, data); !ok {
				t.Fatal("not written")
			}
		}); n > 0 {
			t.Errorf("writing 1000 elements of %s: %v allocations", k.d, n)
		}
	}
	long := []byte("[" + strings.Repeat("1.234567890123456789012345678901234567890,", 500) + "0.00000000000000000000000000000000000000000000000123456789]")
	var s Scanner
	dst := make([]byte, 0, 64<<10)
	for _, d := range []infer.Datatype{infer.FP32, infer.FP64} {
		if n := testing.AllocsPerRun(20, func() {
			s.Reset(long)
			if _, n, err := s.AppendTensor(dst, d, math.MaxInt64); n != 501 || err != nil {
				t.Fatal(n, err)
			}
		}); n > 0 {
			t.Errorf("reading 501 long numbers as %s: %v allocations", d, n)
		}
	}
}

// FuzzBesideEncodingJSON reads the same array as every datatype and as Go's type of it:
// what encoding/json takes we take, and both read the same; what we take beyond it is one
// of the extensions.
func FuzzBesideEncodingJSON(f *testing.F) {
	for _, k := range kinds {
		f.Add([]byte("[" + strings.Join(k.values, ",") + "]"))
	}
	f.Add([]byte("[1.00000005960464477540,16777217.0000001,1e-46,3.4028235677973366e38]"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		for _, k := range kinds {
			if k.d == infer.Uint8 || k.d == infer.Bytes && strings.Contains(string(doc), `\u`) {
				continue // surrogates: FuzzTensor
			}
			slice := reflect.New(reflect.TypeOf(k.slice).Elem())
			theirs := stdjson.Unmarshal(doc, slice.Interface())
			ours, n, err := tensor(string(doc), k.d, math.MaxInt64)
			switch {
			case theirs != nil || strings.Contains(string(doc), "null"):
				continue // nested arrays, NaN, a byte order mark
			case err != nil:
				t.Fatalf("%s: %q: %v", k.d, doc, err)
			case int(n) != slice.Elem().Len():
				t.Fatalf("%s: %q: %d elements, want %d", k.d, doc, n, slice.Elem().Len())
			case k.d == infer.Bytes:
				checkStrings(t, ours, slice.Elem().Interface().([]string), doc)
				continue
			}
			want, err := binary.Append(nil, binary.LittleEndian, slice.Elem().Interface())
			if err != nil {
				t.Fatal(err)
			}
			if string(ours) != string(want) && !strings.Contains(string(doc), "-0") { // the integer -0 is 0, as the original reads it
				t.Fatalf("%s: %q: got %x, want %x", k.d, doc, ours, want)
			}
		}
	})
}

func checkStrings(t *testing.T, data []byte, want []string, doc []byte) {
	for _, w := range want {
		n := int(binary.LittleEndian.Uint32(data))
		// encoding/json replaces what is not UTF-8
		if got := string(data[4 : 4+n]); strings.ToValidUTF8(got, "�") != strings.ToValidUTF8(w, "�") && !strings.Contains(w, "�") {
			t.Fatalf("%q: got %q, want %q", doc, got, w)
		}
		data = data[4+n:]
	}
}

// BenchmarkDatatypes reads and writes 1000 elements of each datatype, beside encoding/json.
func BenchmarkDatatypes(b *testing.B) {
	for _, k := range kinds {
		doc, data := k.many(b, 1000)
		dst := make([]byte, 0, 64<<10)
		flat := []byte(strings.TrimSuffix(strings.TrimPrefix(string(doc), "["), ",[]]"))
		b.Run(k.d.String()+"/read", func(b *testing.B) {
			var s Scanner
			b.ReportAllocs()
			for b.Loop() {
				s.Reset(flat)
				if _, n, err := s.AppendTensor(dst, k.d, 1000); n != 1000 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
		v := reflect.New(reflect.TypeOf(k.slice).Elem())
		if err := stdjson.Unmarshal(flat, v.Interface()); err != nil {
			b.Fatal(err)
		}
		b.Run(k.d.String()+"/read by encoding", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				v.Elem().SetLen(0)
				if err := stdjson.Unmarshal(flat, v.Interface()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(k.d.String()+"/write", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				AppendData(dst, k.d, data)
			}
		})
		b.Run(k.d.String()+"/write by encoding", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := stdjson.Marshal(v.Interface()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
