package configfile

import (
	"bytes"
	"maps"
	"time"
)

// Period is the time for which files must have been unchanged before they come into force. Who looks in turn does so at
// least this often.
const Period = time.Second

// slack is the part of a Period that a second look may come early, as ticks do.
const slack = Period / 10

// Follower keeps a configuration of type T that is made of files up to date. Open makes one.
type Follower[T any] struct {
	limit int64
	load  func(*Reading) (T, error)
	files map[string]*file // those of the configuration in force, and those that the last attempt read
	// changed is set while some file is another one than when load was called last.
	changed bool
	fault   string // the error of the last attempt, as it was returned; "": none
}

// file is a file as the last look found it.
type file struct {
	inForce []byte // its content in the configuration in force; nil: that has no such file
	stamp   stamp
	data    []byte
	err     error     // why it can't be read; nil: data counts
	since   time.Time // the first look that found it so
	settled bool      // a look a Period later found it so too
}

// same says that another look found the same.
func (f *file) same(data []byte, err error) bool {
	if err != nil || f.err != nil {
		return err != nil && f.err != nil && err.Error() == f.err.Error()
	}
	return bytes.Equal(data, f.data)
}

// Open calls load for the first time. limit bounds each file, in bytes. load reads all its files through the Reading; it
// has no other effect than its result, and is called again by later looks. At the start one look at a file counts: a
// file that was being written is read again by the looks that follow.
func Open[T any](limit int64, now time.Time, load func(*Reading) (T, error)) (*Follower[T], T, error) {
	f := &Follower[T]{limit: limit, load: load, files: map[string]*file{}}
	r := &Reading{limit: limit, now: now, files: f.files, read: map[string]bool{}, first: true}
	value, err := load(r)
	if err == nil {
		f.use(r)
	}
	return f, value, err
}

// Result is what a Look found.
type Result int

// Results of a Look.
const (
	Unchanged Result = iota // what is in force stays; also while files are written, or a fault lasts that was returned
	Changed                 // the files are others, and good
	Restored                // after a fault, the files are again those in force
	Failed                  // the files are others and bad; what is in force stays
)

// Fixed says that the configuration reads no file, so that no Look will find another one.
func (f *Follower[T]) Fixed() bool { return len(f.files) == 0 }

// Look looks at the files once. The value is that of load where the Result is Changed; the error, which is given once
// for each fault, is that of load where it is Failed.
func (f *Follower[T]) Look(now time.Time) (value T, result Result, err error) {
	if whole := f.lookAtAll(now); !f.changed || !whole {
		return value, Unchanged, nil
	}
	if f.asInForce() {
		f.changed = false
		f.dropTried()
		if f.fault == "" {
			return value, Unchanged, nil
		}
		f.fault = ""
		return value, Restored, nil
	}
	r := &Reading{limit: f.limit, now: now, files: f.files, read: map[string]bool{}}
	loaded, err := f.load(r)
	if r.fresh { // files that were named for the first time have to settle too
		return value, Unchanged, nil
	}
	f.changed = false
	if err != nil {
		maps.DeleteFunc(f.files, func(name string, one *file) bool { return one.inForce == nil && !r.read[name] })
		if err.Error() == f.fault {
			return value, Unchanged, nil
		}
		f.fault = err.Error()
		return value, Failed, err
	}
	f.use(r)
	return loaded, Changed, nil
}

// lookAtAll looks at every file once and says whether all of them are settled.
func (f *Follower[T]) lookAtAll(now time.Time) (whole bool) {
	moved := false
	for name, one := range f.files {
		if f.look(name, one, now) {
			f.changed, moved = true, moved || one.inForce != nil
		}
	}
	if moved { // what the attempts since named may not be named any more, and need not settle then
		f.dropTried()
	}
	whole = true
	for _, one := range f.files {
		whole = whole && one.settled
	}
	return whole
}

// dropTried forgets the files that only attempts which failed have read.
func (f *Follower[T]) dropTried() {
	maps.DeleteFunc(f.files, func(_ string, one *file) bool { return one.inForce == nil })
}

// look looks at one file and says whether it is another one than it was.
func (f *Follower[T]) look(name string, one *file, now time.Time) (other bool) {
	at := stampOf(name)
	if at == one.stamp && (one.settled || now.Sub(one.since) < Period-slack) {
		return false
	}
	data, err := Read(name, f.limit)
	if at == one.stamp && one.same(data, err) {
		one.settled = true
		return false
	}
	one.stamp, one.data, one.err, one.since, one.settled = at, data, err, now, false
	return true
}

// asInForce says that all files have the content that is in force.
func (f *Follower[T]) asInForce() bool {
	for _, one := range f.files {
		if one.inForce != nil && (one.err != nil || !bytes.Equal(one.data, one.inForce)) {
			return false
		}
	}
	return true
}

// use puts what was read into force.
func (f *Follower[T]) use(r *Reading) {
	maps.DeleteFunc(f.files, func(name string, _ *file) bool { return !r.read[name] })
	for _, one := range f.files {
		one.inForce = one.data
	}
	f.fault = ""
}
