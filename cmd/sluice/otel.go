package main

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
)

// exporterLog is what OpenTelemetry's exporters log with while they read their
// variables: headers, which may be secret, are left out.
func exporterLog(w io.Writer) logr.Logger {
	return logr.FromSlogHandler(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == "input" {
			return slog.String(a.Key, "(left out)")
		}
		return a
	}}))
}
