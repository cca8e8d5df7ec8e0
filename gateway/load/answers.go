package load

import (
	"fmt"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
)

// The keys that carry a report in an answer.
// Source: the header of the original (triton.md A12) and of Envoy; gRPC's A51 for the
// second, which is for trailers alone.
const (
	HeaderKey  = "endpoint-load-metrics"
	TrailerKey = "endpoint-load-metrics-bin"
)

// Answers puts reports into answers: for callers that ask, and with Always for all.
type Answers struct {
	Meter  *Meter
	Always Format
}

// ParseAlways reads the flag: off, text, json or bin.
func ParseAlways(name string) (Format, error) {
	f, ok := ParseFormat(name)
	if !ok {
		return None, fmt.Errorf("'%s' is not off, text, json or bin", name)
	}
	return f, nil
}

// format is what an answer gets: what its caller asked for, else what all get. Callers
// that ask for something unknown get what all get.
func (a *Answers) format(asked string) Format {
	if asked != "" {
		if f, ok := ParseFormat(asked); ok && f != None {
			return f
		}
	}
	return a.Always
}

// Header is the value of HeaderKey for an HTTP answer; "" for none.
func (a *Answers) Header(asked string) string {
	f := a.format(asked)
	if f == None {
		return ""
	}
	return a.Meter.Report().Header(f)
}

// Trailer is what goes with a gRPC answer; its value is "" for none.
func (a *Answers) Trailer(asked string) (key, value string) {
	switch f := a.format(asked); f {
	case None:
		return "", ""
	case Binary:
		return TrailerKey, a.Meter.Report().Binary()
	default:
		return HeaderKey, a.Meter.Report().Header(f)
	}
}

// Full is Meter.Full.
func (a *Answers) Full() *orcav3.OrcaLoadReport { return a.Meter.Full() }
