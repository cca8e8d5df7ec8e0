package drive

import "github.com/sluice-serve/sluice/infer"

// part is one answer on its way to its caller, or word for who has its inputs.
type part struct {
	result *infer.Result   // of the whole batch, to be cut
	resp   *infer.Response // or of this request alone
	mem    *infer.Buffer   // one reference
	err    error
	final  bool
	read   bool // no answer: the inputs are read no more
	first  int  // row of this request in result
	index  int  // of this request in batch
	batch  *batch
	times  times
}

// times are those of a batch, for every request in it.
type times struct {
	start, inputEnd, outputStart, end int64
	rows                              int
}

// parts is a queue of parts, in the order in which they came.
type parts struct {
	all  []part
	head int // of those before it, each was taken
}

func (q *parts) add(p part) {
	if len(q.all) == cap(q.all) && q.head > len(q.all)/2 {
		n := copy(q.all, q.all[q.head:])
		clear(q.all[n:])
		q.all, q.head = q.all[:n], 0
	}
	q.all = append(q.all, p)
}

// take takes out the first one.
func (q *parts) take() (p part, ok bool) {
	if q.head == len(q.all) {
		return p, false
	}
	p, q.all[q.head] = q.all[q.head], part{}
	if q.head++; q.head == len(q.all) {
		q.all, q.head = q.all[:0], 0
	}
	return p, true
}

// drop takes out all, and releases their memory.
func (q *parts) drop() {
	for i := range q.all {
		q.all[i].mem.Release()
	}
	clear(q.all)
	q.all, q.head = q.all[:0], 0
}
