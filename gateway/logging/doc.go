// Package logging writes the server's log: a slog handler with the two line formats of
// Triton and settings that the logging extension changes at run time. The gateway makes
// one Log and hands its Logger to everything else.
//
// A Log is safe for concurrent use; a line is one write. Values and their names are quoted
// by an encoder, so text from clients and workers can't forge a line, and lines have a
// bound in bytes. Bounded bounds them by number, here and for the programs that log with a
// handler of log/slog.
package logging
