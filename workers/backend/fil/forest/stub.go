//go:build !cgo

package forest

import (
	"context"
	"errors"
)

// Source is a file and how it is read.
type Source struct {
	Library string
	Format  Format
	Path    string
	Unknown bool
}

// Forest is a model; in a build without cgo there is none.
type Forest struct {
	Task                       Task
	Features, Targets, Classes int
	Wide                       bool
	Trees, Nodes               int
}

// Load fails: this build has no cgo.
func Load(context.Context, Source) (*Forest, error) {
	return nil, errors.New("this worker was built without cgo")
}

// Close frees nothing.
func (*Forest) Close() error { return nil }

// Size is 0.
func (*Forest) Size() int { return 0 }

// Predict is never called: there is no Forest.
func (*Forest) Predict([]byte, []byte, int) {}

// Child is false: nothing is read.
func Child() (status int, is bool) { return 0, false }
