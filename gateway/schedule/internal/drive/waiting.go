package drive

// waiting are the items that the core has in line, in no order: what a panic must not lose.
type waiting struct {
	head *item
	n    int
}

func (w *waiting) add(it *item) {
	it.waits, it.lineBefore, it.lineNext = true, nil, w.head
	if w.head != nil {
		w.head.lineBefore = it
	}
	w.head = it
	w.n++
}

func (w *waiting) remove(it *item) {
	if !it.waits {
		return
	}
	if it.lineBefore != nil {
		it.lineBefore.lineNext = it.lineNext
	} else {
		w.head = it.lineNext
	}
	if it.lineNext != nil {
		it.lineNext.lineBefore = it.lineBefore
	}
	it.waits, it.lineBefore, it.lineNext = false, nil, nil
	w.n--
}
