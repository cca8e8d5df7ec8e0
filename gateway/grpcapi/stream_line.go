package grpcapi

// requestList is the requests of a stream that are in flight, in the order in which they
// came. The zero value is empty.
type requestList struct {
	head, tail *streamRequest
	n          int
}

func (l *requestList) add(r *streamRequest) {
	r.older, r.younger = l.tail, nil
	if l.tail != nil {
		l.tail.younger = r
	} else {
		l.head = r
	}
	l.tail = r
	l.n++
}

func (l *requestList) remove(r *streamRequest) {
	if r.older != nil {
		r.older.younger = r.younger
	} else {
		l.head = r.younger
	}
	if r.younger != nil {
		r.younger.older = r.older
	} else {
		l.tail = r.older
	}
	r.older, r.younger = nil, nil
	l.n--
}

// lineup is the requests whose answers leave in the order in which they came: only the
// first one's do. The zero value is empty.
type lineup struct{ head, tail *streamRequest }

func (l *lineup) add(r *streamRequest) {
	r.inLine, r.before, r.next = true, l.tail, nil
	if l.tail != nil {
		l.tail.next = r
	} else {
		l.head = r
	}
	l.tail = r
}

func (l *lineup) remove(r *streamRequest) {
	if r.before != nil {
		r.before.next = r.next
	} else {
		l.head = r.next
	}
	if r.next != nil {
		r.next.before = r.before
	} else {
		l.tail = r.before
	}
	r.inLine, r.before, r.next = false, nil, nil
}
