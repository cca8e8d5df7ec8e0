package tracing

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// encoder writes traces as the elements of a trace file. Every text of a client's goes
// through a JSON encoder, unlike in the original.
type encoder struct {
	base  int64 // what to add to infer.Now for CLOCK_MONOTONIC, which the original's files hold
	marks []infer.TraceMark
	start bool // an element stands already

	parents map[uint64]bool // traces of the family that have children
}

// family appends a request and its children.
func (e *encoder) family(b []byte, f *infer.TraceFamily) []byte {
	e.start = false
	clear(e.parents)
	for _, t := range f.Traces[1:] {
		if e.parents == nil {
			e.parents = map[uint64]bool{}
		}
		e.parents[t.Parent] = true
	}
	for _, t := range f.Traces {
		b = e.trace(b, t)
	}
	return b
}

// computed says that a backend executed the request itself: not a cache, nor other
// models, whose steps are traces of their own.
func (e *encoder) computed(t *infer.Trace) bool {
	return t.Times.ComputeStart > 0 && !t.Times.CacheHit && !e.parents[t.ID]
}

// trace appends one trace: its moments in order, its name at the beginning of the
// request, the tensors behind the moment when it was queued.
func (e *encoder) trace(b []byte, t *infer.Trace) []byte {
	named, tensors := false, len(t.Tensors) == 0
	for _, m := range e.moments(t) {
		if !named && m.At >= t.Start {
			named, b = true, e.name(b, t)
		}
		b = e.moment(b, t.ID, m)
		if m.Name == queueStart && !tensors {
			tensors, b = true, e.tensors(b, t)
		}
	}
	if !named {
		b = e.name(b, t)
	}
	if !tensors {
		b = e.tensors(b, t)
	}
	return b
}

// tensors appends what was queued, the same again as what the backend got where it got
// that far, and the outputs.
func (e *encoder) tensors(b []byte, t *infer.Trace) []byte {
	each := func(activity, as string) {
		for i := range t.Tensors {
			if t.Tensors[i].Activity == activity {
				b = e.tensor(b, t.ID, as, &t.Tensors[i])
			}
		}
	}
	each(infer.TraceQueueInput, infer.TraceQueueInput)
	if e.computed(t) {
		each(infer.TraceQueueInput, infer.TraceBackendInput)
	}
	each(infer.TraceBackendOutput, infer.TraceBackendOutput)
	return b
}

const queueStart = "QUEUE_START"

// moments are the marks and times of a trace in order; none where its level has none.
func (e *encoder) moments(t *infer.Trace) []infer.TraceMark {
	e.marks = e.marks[:0]
	if t.Level&infer.TraceTimestamps == 0 {
		return nil
	}
	add := func(name string, at int64) {
		if at > 0 {
			e.marks = append(e.marks, infer.TraceMark{Name: name, At: at})
		}
	}
	x := &t.Times
	for _, m := range t.Marks {
		add(m.Name, m.At)
	}
	if t.Start > 0 {
		add("REQUEST_START", t.Start)
		if x.QueueStart > 0 {
			add(queueStart, x.QueueStart)
		} else {
			add(queueStart, t.Queued) // a hit: the cache stands before the queue
		}
		if e.computed(t) {
			add("COMPUTE_START", x.ComputeStart)
			add("COMPUTE_INPUT_END", x.ComputeInputEnd)
			add("COMPUTE_OUTPUT_START", x.ComputeOutputStart)
			add("COMPUTE_END", x.ComputeEnd)
		}
	}
	if t.Start > 0 {
		add("REQUEST_END", x.RequestEnd)
	}
	slices.SortStableFunc(e.marks, func(a, b infer.TraceMark) int { return cmp.Compare(a.At, b.At) })
	return e.marks
}

// element begins one element of the array.
func (e *encoder) element(b []byte, id uint64) []byte {
	if e.start {
		b = append(b, ',')
	}
	e.start = true
	return strconv.AppendUint(append(b, `{"id":`...), id, 10)
}

func (e *encoder) name(b []byte, t *infer.Trace) []byte {
	if t.Model == "" || t.Start == 0 {
		return b
	}
	b = appendString(append(e.element(b, t.ID), `,"model_name":`...), t.Model)
	version := t.Version
	if _, err := strconv.ParseInt(version, 10, 64); err != nil {
		version = "-1" // as the original numbers what it does not know
	}
	b = append(append(b, `,"model_version":`...), version...)
	if t.RequestID != "" {
		b = appendString(append(b, `,"request_id":`...), t.RequestID)
	}
	if t.Parent != 0 {
		b = strconv.AppendUint(append(b, `,"parent_id":`...), t.Parent, 10)
	}
	return append(b, '}')
}

func (e *encoder) moment(b []byte, id uint64, m infer.TraceMark) []byte {
	b = appendString(append(e.element(b, id), `,"timestamps":[{"name":`...), m.Name)
	return append(strconv.AppendInt(append(b, `,"ns":`...), m.At+e.base, 10), "}]}"...)
}

// tensor appends one tensor, in which everything is a string, as in the original.
func (e *encoder) tensor(b []byte, id uint64, activity string, t *infer.TraceTensor) []byte {
	b = appendString(append(e.element(b, id), `,"activity":`...), activity)
	b = appendString(append(b, `,"tensor":{"name":`...), t.Name)
	b = appendString(append(b, `,"data":`...), dataText(t.Datatype, t.Data))
	b = append(b, `,"shape":"`...)
	for i, d := range t.Shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, d, 10)
	}
	b = append(b, `","dtype":`...)
	return append(appendString(b, t.Datatype.String()), "}}"...)
}

// appendString appends a JSON string; what is no UTF-8 becomes U+FFFD, so that readers
// take the file.
func appendString(b []byte, s string) []byte {
	q, err := json.Marshal(strings.ToValidUTF8(s, "\ufffd"))
	if err != nil { // a string can't fail
		return append(b, `""`...)
	}
	return append(b, q...)
}

// dataText is a tensor's elements separated by commas: numbers in decimal, BYTES in
// double quotes that are doubled inside, as readers of comma-separated values take them.
// The original prints eight-bit integers as characters and nothing for FP16 and BF16.
func dataText(d infer.Datatype, data []byte) string {
	var b []byte
	if d == infer.Bytes {
		return bytesText(data)
	}
	size := int(d.Size())
	if size == 0 {
		return ""
	}
	for i := 0; i+size <= len(data); i += size {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendElement(b, d, data[i:i+size])
	}
	return string(b)
}

func bytesText(data []byte) string {
	var b strings.Builder
	for len(data) >= 4 {
		n := uint64(binary.LittleEndian.Uint32(data))
		if n > uint64(len(data)-4) {
			break
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + strings.ReplaceAll(string(data[4:4+n]), `"`, `""`) + `"`)
		data = data[4+n:]
	}
	return b.String()
}

func appendElement(b []byte, d infer.Datatype, e []byte) []byte {
	le := binary.LittleEndian
	switch d {
	case infer.Bool, infer.Uint8:
		return strconv.AppendUint(b, uint64(e[0]), 10)
	case infer.Uint16:
		return strconv.AppendUint(b, uint64(le.Uint16(e)), 10)
	case infer.Uint32:
		return strconv.AppendUint(b, uint64(le.Uint32(e)), 10)
	case infer.Uint64:
		return strconv.AppendUint(b, le.Uint64(e), 10)
	case infer.Int8:
		return strconv.AppendInt(b, int64(int8(e[0])), 10)
	case infer.Int16:
		return strconv.AppendInt(b, int64(int16(le.Uint16(e))), 10)
	case infer.Int32:
		return strconv.AppendInt(b, int64(int32(le.Uint32(e))), 10)
	case infer.Int64:
		return strconv.AppendInt(b, int64(le.Uint64(e)), 10)
	case infer.FP16:
		return strconv.AppendFloat(b, float64(halfFloat(le.Uint16(e))), 'g', -1, 32)
	case infer.BF16:
		return strconv.AppendFloat(b, float64(math.Float32frombits(uint32(le.Uint16(e))<<16)), 'g', -1, 32)
	case infer.FP32:
		return strconv.AppendFloat(b, float64(math.Float32frombits(le.Uint32(e))), 'g', -1, 32)
	case infer.FP64:
		return strconv.AppendFloat(b, math.Float64frombits(le.Uint64(e)), 'g', -1, 64)
	}
	return b
}

// halfFloat is an IEEE 754 half as a single.
func halfFloat(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exp {
	case 0:
		v := float32(frac) / (1 << 24)
		if sign != 0 {
			return -v
		}
		return v
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}
