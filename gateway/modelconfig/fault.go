package modelconfig

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// Pos is a place in a config file. The zero value is unknown.
type Pos struct {
	Line   int // from 1
	Column int // from 1, in characters
}

// Fault is one thing that is wrong with a model config.
type Fault struct {
	File string // as given to Parse; "" where the fault is not in a file
	Pos  Pos    // zero where unknown
	Path string // of the field, "input[0].dims"; "" where it is about the whole config
	Msg  string
}

// String is "file:line:column: message", less what is unknown.
func (f Fault) String() string {
	switch {
	case f.File == "":
		return f.Msg
	case f.Pos.Line == 0:
		return f.File + ": " + f.Msg
	}
	return fmt.Sprintf("%s:%d:%d: %s", f.File, f.Pos.Line, f.Pos.Column, f.Msg)
}

// Faults are all faults that one step found, in the order of the file where that is
// known. They are in the chain of the errors of Parse, Complete and Validate.
type Faults []Fault

// Error joins them with "; ".
func (f Faults) Error() string {
	all := make([]string, len(f))
	for i := range f {
		all[i] = f[i].String()
	}
	return strings.Join(all, "; ")
}

// err is f as an InvalidArg error, or nil where there is no fault.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	return infer.Errorf(infer.InvalidArg, "%w", f)
}

func (f *Faults) addf(path, format string, args ...any) {
	*f = append(*f, Fault{Path: path, Msg: fmt.Sprintf(format, args...)})
}

// FaultsOf reads the faults from anywhere in the chain of err; nil where there are none.
func FaultsOf(err error) Faults {
	var f Faults
	if errors.As(err, &f) {
		return f
	}
	return nil
}

// Source remembers where the fields of a parsed file stood. A nil Source knows nothing.
type Source struct {
	File string
	at   map[string]Pos
}

// Given says whether the file sets the field at path, "max_batch_size".
func (s *Source) Given(path string) bool {
	if s == nil {
		return false
	}
	_, ok := s.at[path]
	return ok
}

// Find gives the place of the field at path, or of the nearest message around it.
func (s *Source) Find(path string) (Pos, bool) {
	if s == nil {
		return Pos{}, false
	}
	for path != "" {
		if p, ok := s.at[path]; ok {
			return p, true
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return Pos{}, false
}

// Locate returns err with the places of its faults filled in, where they are in this
// file; other errors are returned as they are.
func (s *Source) Locate(err error) error {
	faults := FaultsOf(err)
	if s == nil || faults == nil {
		return err
	}
	located := make(Faults, len(faults))
	for i, f := range faults {
		if f.File == "" {
			f.File = s.File
			f.Pos, _ = s.Find(f.Path)
		}
		located[i] = f
	}
	return located.err()
}
