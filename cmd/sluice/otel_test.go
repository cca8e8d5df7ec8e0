package main

import (
	"errors"
	"strings"
	"testing"
)

func TestExportersLogNoHeaders(t *testing.T) {
	var b strings.Builder
	exporterLog(&b).Error(errors.New("missing '='"), "parse headers", "input", "a-secret")
	if got := b.String(); strings.Contains(got, "secret") || !strings.Contains(got, "parse headers") {
		t.Errorf("got %s", got)
	}
}
