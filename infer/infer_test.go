package infer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
)

func TestDatatypes(t *testing.T) {
	sizes := map[Datatype]int64{Bool: 1, Uint8: 1, Uint16: 2, Uint32: 4, Uint64: 8, Int8: 1, Int16: 2, Int32: 4, Int64: 8,
		FP16: 2, FP32: 4, FP64: 8, Bytes: 0, BF16: 2}
	for d, size := range sizes {
		if got := ParseDatatype(d.String()); got != d || d.Size() != size {
			t.Errorf("%s: parsed as %d, size %d, want %d and %d", d, got, d.Size(), d, size)
		}
	}
	for _, name := range []string{"", "FP8", "fp32", "STRING"} {
		if got := ParseDatatype(name); got != Invalid {
			t.Errorf("%q: got %s, want none", name, got)
		}
	}
	if s := Datatype(200).String(); s != "<invalid>" {
		t.Errorf("datatype 200 is called %q", s)
	}
}

func TestByteSize(t *testing.T) {
	for _, c := range []struct {
		name  string
		d     Datatype
		shape []int64
		want  int64
		fails bool
	}{
		{"scalar", FP32, nil, 4, false},
		{"zero", FP32, []int64{0, 1 << 40, 1 << 40}, 0, false},
		{"strings", Bytes, []int64{3}, -1, false},
		{"negative", FP32, []int64{2, -1}, 0, true},
		{"elements overflow", Uint8, []int64{1 << 32, 1 << 32}, 0, true},
		{"bytes overflow", FP64, []int64{1 << 31, 1 << 30}, 0, true},
		{"largest", Uint8, []int64{math.MaxInt64}, math.MaxInt64, false},
		{"rank", Uint8, make([]int64, MaxRank+1), 0, true},
	} {
		got, err := ByteSize(c.d, c.shape)
		if (err != nil) != c.fails || (!c.fails && got != c.want) {
			t.Errorf("%s: ByteSize(%s, %v) = %d, %v; want %d, failure %v", c.name, c.d, c.shape, got, err, c.want, c.fails)
		}
		if err != nil && CodeOf(err) != InvalidArg {
			t.Errorf("%s: code %s", c.name, CodeOf(err))
		}
	}
}

func TestCodes(t *testing.T) {
	err := fmt.Errorf("worker 3: %w", Refusef(Unavailable, ReasonQueueFull, "full: %w", ErrWorkerLost))
	if CodeOf(err) != Unavailable || ReasonOf(err) != ReasonQueueFull || !errors.Is(err, ErrWorkerLost) {
		t.Errorf("wrapped: code %s, reason %s", CodeOf(err), ReasonOf(err))
	}
	for err, want := range map[error]Code{context.Canceled: Cancelled, context.DeadlineExceeded: Cancelled, errors.New("x"): Internal} {
		if got := CodeOf(err); got != want {
			t.Errorf("CodeOf(%v) = %s, want %s", err, got, want)
		}
	}
	for _, c := range Codes() {
		if c.String() == "" {
			t.Errorf("code %d has no name", c)
		}
	}
}

func TestBufferCounts(t *testing.T) {
	freed := 0
	b := NewBuffer(make([]byte, 3), func(*Buffer) { freed++ })
	b.Retain()
	b.Release()
	if freed != 0 {
		t.Error("freed with a reference held")
	}
	b.Release()
	if freed != 1 {
		t.Errorf("freed %d times", freed)
	}
	for _, c := range []struct {
		name   string
		misuse func()
	}{{"release", b.Release}, {"retain", b.Retain}} { // the second would make the first look right
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s after the last release did not panic", c.name)
				}
			}()
			c.misuse()
		}()
	}
	var none *Buffer
	none.Retain()
	none.Release()
}

func str(parts ...string) (b []byte) {
	for _, s := range parts {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	return b
}

func TestSplit(t *testing.T) {
	outputs := []Tensor{
		{Name: "f", Datatype: FP32, Shape: []int64{3, 2}, Data: slices.Repeat([]byte{1, 2, 3, 4}, 6)},
		{Name: "s", Datatype: Bytes, Shape: []int64{3, 1}, Data: str("a", "bcd", "")},
	}
	got, err := Split(nil, outputs, 3, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got[0].Shape, []int64{2, 2}) || len(got[0].Data) != 16 || string(got[1].Data) != string(str("bcd", "")) {
		t.Errorf("got %+v", got)
	}
	for name, bad := range map[string]Tensor{
		"rows":       {Datatype: FP32, Shape: []int64{2, 2}, Data: make([]byte, 16)},
		"scalar":     {Datatype: FP32, Data: make([]byte, 4)},
		"short data": {Datatype: FP32, Shape: []int64{3, 2}, Data: make([]byte, 20)},
		"strings":    {Datatype: Bytes, Shape: []int64{3}, Data: str("a", "b")},
		"length":     {Datatype: Bytes, Shape: []int64{3}, Data: []byte{255, 255, 255, 255}},
	} {
		if _, err := Split(nil, []Tensor{bad}, 3, 2, 1); CodeOf(err) != Internal {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Rows of a resident output are a part of its place; those of one in a client's memory can't be cut.
func TestSplitResident(t *testing.T) {
	o := Tensor{Name: "OUT", Datatype: FP32, Shape: []int64{4, 3}, Place: Place{Region: MaxRegions + 5, Offset: 48, Size: 48}}
	got, err := Split(nil, []Tensor{o}, 4, 1, 2)
	if err != nil || len(got) != 1 || got[0].Place != (Place{Region: MaxRegions + 5, Offset: 60, Size: 24}) || got[0].Shape[0] != 2 || o.Shape[0] != 4 {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, change := range map[string]func(o *Tensor){
		"a client's": func(o *Tensor) { o.Place.Region = MaxRegions },
		"its size":   func(o *Tensor) { o.Place.Size-- },
		"texts":      func(o *Tensor) { o.Datatype = Bytes },
		"its shape":  func(o *Tensor) { o.Shape = []int64{4, 1 << 62} },
	} {
		bad := o
		change(&bad)
		if _, err := Split(nil, []Tensor{bad}, 4, 1, 2); CodeOf(err) != Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSplitOfTooManyElements(t *testing.T) {
	wide := Tensor{Datatype: Bytes, Shape: []int64{3, 1 << 62}, Data: str("a", "b", "c")}
	if got, err := Split(nil, []Tensor{wide}, 3, 0, 2); CodeOf(err) != Internal {
		t.Errorf("got %v and %v", got, err)
	}
}

func FuzzCountBytesElements(f *testing.F) {
	f.Add(str("a", "", "ccc"))
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := CountBytesElements(data)
		if err != nil {
			return
		}
		whole := Tensor{Datatype: Bytes, Shape: []int64{n}, Data: data}
		if n > 0 {
			if got, err := Split(nil, []Tensor{whole}, int(n), 0, int(n)); err != nil || len(got[0].Data) != len(data) {
				t.Errorf("%d elements counted, but split fails: %v", n, err)
			}
		}
	})
}

func TestPrefix(t *testing.T) {
	if got := (&Request{}).Prefix(); got != "[request id: <id_unknown>] " {
		t.Errorf("no id: %q", got)
	}
	if got := (&Request{ID: "r4"}).Prefix(); got != "[request id: r4] " {
		t.Errorf("id r4: %q", got)
	}
}
