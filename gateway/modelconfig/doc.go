// Package modelconfig reads, completes and checks model configs: config.pbtxt files
// in protobuf text format become modelconfig.ModelConfig messages (Parse), what the
// file leaves out is filled in from the folder, the model file and the machine
// (Complete), and what can't be served is refused with the place in the file
// (Validate).
//
// The parser is our own and not prototext because a model's owner has to find his
// mistake: it reports all faults of a file at once, each with line and column and with
// the name that was probably meant, and it remembers where every field stood, so that
// the checks that come later point into the file too.
//
// The repository and `sluice check` call it. There is no state: everything may be
// called from any goroutine, with messages that the caller owns.
package modelconfig
