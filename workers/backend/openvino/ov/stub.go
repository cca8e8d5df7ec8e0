//go:build !cgo

package ov

import "errors"

var errNone = errors.New("this worker was built without cgo")

// Library, Model, Compiled and Request are none in a build without cgo: Open fails.
type (
	Library  struct{}
	Compiled struct{}
	Request  struct{}
	Property [2]string
	Model    struct{ Inputs, Outputs []Port }
)

// Open fails.
func Open(string) (*Library, error) { return nil, errNone }

// Version is "".
func (*Library) Version() string { return "" }

// Read fails.
func (*Library) Read(string, func(string) string) (*Model, error) { return nil, errNone }

// Close does nothing.
func (*Model) Close() {}

// Reshape fails.
func (*Model) Reshape(map[int][]Range) error { return errNone }

// Compile fails.
func (*Model) Compile(string, []Property) (*Compiled, error) { return nil, errNone }

// Close does nothing.
func (*Compiled) Close() {}

// NewRequest fails.
func (*Compiled) NewRequest(int, int) (*Request, error) { return nil, errNone }

// Close does nothing.
func (*Request) Close() {}

// Release does nothing.
func (*Request) Release() {}

// Terminate fails.
func (*Request) Terminate() error { return errNone }

// Terminated is false.
func Terminated(error) bool { return false }

// Run fails.
func (*Request) Run([]Tensor, []Tensor) error { return errNone }
