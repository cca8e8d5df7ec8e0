// Package logging writes the server's log: a slog handler with the two line formats of
// the original and settings that the logging extension changes at run time. The
// gateway makes one Log and hands its Logger to everything else.
//
// A Log is safe for concurrent use; a line is one write. Values are quoted by an
// encoder, so text from clients can't forge a line.
package logging
