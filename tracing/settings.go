package tracing

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// Settings are those of the trace extension.
type Settings struct {
	Level        infer.TraceLevel // 0: OFF
	Rate         uint32           // every so many'th request is sampled; 0: none
	Count        int32            // traces still to take; -1: no bound
	LogFrequency uint32           // traces in one file; 0: all in one
	File         string           // "": none, and then nothing is traced
	// Export makes the mode opentelemetry: LogFrequency and File are not used. It is the
	// same for all models and never changes; nil: the mode is triton.
	Export *Export
}

// DefaultSettings are those of a server without --trace-… flags.
func DefaultSettings() Settings { return Settings{Rate: 1000, Count: -1} }

// Mode is the mode whose traces are files.
const Mode = "triton"

// The names of the settings.
const (
	nameFile      = "trace_file"
	nameLevel     = "trace_level"
	nameRate      = "trace_rate"
	nameCount     = "trace_count"
	nameFrequency = "log_frequency"
	nameMode      = "trace_mode"
)

// Names are the settings in the order in which the original answers them.
func Names() []string {
	return []string{nameLevel, nameRate, nameCount, nameFrequency, nameFile, nameMode}
}

// ShownNames are the settings that an answer has, in the order in which the original
// answers those of mode triton. Those of mode opentelemetry it has in no order.
func ShownNames[V any](mode string, settings map[string]V) []string {
	if mode != ModeOpenTelemetry {
		return Names()
	}
	names := []string{nameLevel, nameRate, nameCount, nameMode}
	rest := slices.Sorted(maps.Keys(settings))
	return append(names, slices.DeleteFunc(rest, func(n string) bool { return slices.Contains(names[:4:4], n) })...)
}

// Values are the settings as the protocol shows them: strings, and a list of them for
// the level.
func (s *Settings) Values() map[string][]string {
	v := map[string][]string{
		nameLevel:     LevelNames(s.Level),
		nameRate:      {strconv.FormatUint(uint64(s.Rate), 10)},
		nameCount:     {strconv.FormatInt(int64(s.Count), 10)},
		nameFrequency: {strconv.FormatUint(uint64(s.LogFrequency), 10)},
		nameFile:      {s.File},
		nameMode:      {Mode},
	}
	if s.Export != nil {
		s.Export.values(v)
	}
	return v
}

// LevelNames are a level's names in the protocol; OFF for none.
func LevelNames(l infer.TraceLevel) []string {
	var names []string
	if l&infer.TraceTimestamps != 0 {
		names = append(names, "TIMESTAMPS")
	}
	if l&infer.TraceTensors != 0 {
		names = append(names, "TENSORS")
	}
	if names == nil {
		return []string{"OFF"}
	}
	return names
}

// fault says why nothing can be sampled, in the original's words; "" where it can.
func (s *Settings) fault() string {
	switch {
	case s.Level == 0:
		return "tracing is disabled"
	case s.Export != nil: // callers may have sampled
		return ""
	case s.Rate == 0:
		return "sample rate must be non-zero"
	case s.File == "":
		return "trace file name is not given"
	}
	return ""
}

// samples says that requests may be sampled.
func (s *Settings) samples() bool { return s.fault() == "" && (s.Count != 0 || s.Export != nil) }

// field is a bit for each setting that a model, or the API, can set.
type field uint8

const (
	fieldLevel field = 1 << iota
	fieldRate
	fieldCount
	fieldFrequency
	fieldsAll = fieldLevel | fieldRate | fieldCount | fieldFrequency
)

// Change is an update of settings. The zero value changes nothing.
type Change struct {
	to    Settings
	set   field // these have the values of to
	clear field // these go back to what stands above: of a model the global setting, of that the flags
}

// IsZero says that nothing would change.
func (c *Change) IsZero() bool { return c.set|c.clear == 0 }

// ParseChange reads an update as the protocol gives it: an empty list clears. Errors are
// the client's. Unknown names and unknown levels are ignored, as in the original; what
// it misreads (12abc as 12, -1 as 4294967295, 3000000000 not at all) is not.
// Source: the texts of the original over gRPC.
func ParseChange(settings map[string][]string) (Change, error) {
	var c Change
	if _, ok := settings[nameFile]; ok {
		return c, infer.Errorf(infer.Unsupported, "trace file location can not be updated through network protocol")
	}
	if err := c.level(settings); err != nil {
		return c, err
	}
	if v, ok, err := c.number(settings, nameRate, fieldRate, 0, math.MaxUint32); err != nil {
		return c, err
	} else if ok {
		c.to.Rate = uint32(v)
	}
	if v, ok, err := c.number(settings, nameCount, fieldCount, -1, math.MaxInt32); err != nil {
		return c, err
	} else if ok {
		c.to.Count = int32(v)
	}
	if v, ok, err := c.number(settings, nameFrequency, fieldFrequency, 0, math.MaxUint32); err != nil {
		return c, err
	} else if ok {
		c.to.LogFrequency = uint32(v)
	}
	return c, nil
}

func (c *Change) level(settings map[string][]string) error {
	names, ok := settings[nameLevel]
	if !ok {
		return nil
	}
	if len(names) == 0 {
		c.clear |= fieldLevel
		return nil
	}
	for _, name := range names {
		switch name {
		case "OFF":
			if len(names) > 1 {
				return infer.Errorf(infer.InvalidArg, "Expect only one trace level 'OFF' is specified")
			}
		case "TIMESTAMPS":
			c.to.Level |= infer.TraceTimestamps
		case "TENSORS":
			c.to.Level |= infer.TraceTensors
		default:
			continue
		}
		c.set |= fieldLevel
	}
	return nil
}

// number reads a setting of [low, high]; false where it is not there or cleared.
func (c *Change) number(settings map[string][]string, name string, f field, low, high int64) (int64, bool, error) {
	values, ok := settings[name]
	switch {
	case !ok:
		return 0, false, nil
	case len(values) == 0:
		c.clear |= f
		return 0, false, nil
	case len(values) > 1:
		return 0, false, infer.Errorf(infer.InvalidArg, "expect only 1 value for '%s'", name)
	}
	v, err := strconv.ParseInt(strings.TrimSpace(values[0]), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return 0, false, infer.Errorf(infer.InvalidArg, "Unable to parse '%s', got: %s", name, clip(values[0]))
	case err == nil && f == fieldCount && v < low && v >= math.MinInt32:
		return 0, false, infer.Errorf(infer.InvalidArg, "Unable to parse '%s'. Expecting value >= -1, got: %s", name, clip(values[0]))
	case err != nil || v < low || v > high:
		return 0, false, infer.Errorf(infer.InvalidArg, "Unable to parse '%s', value is out of range [ %d, %d ], got: %s",
			name, low, high, clip(values[0]))
	}
	c.set |= f
	return v, true, nil
}

// clip bounds how much of a client's text an error repeats.
func clip(s string) string { return s[:min(len(s), 128)] }

// apply gives the settings and the fields that are set of their own: a cleared field
// takes above's value, one that is neither changed nor set before as well.
func (c *Change) apply(now Settings, own field, above Settings) (Settings, field) {
	own = (own | c.set) &^ c.clear
	out := above
	pick := func(f field, take func(from *Settings)) {
		switch {
		case own&f == 0:
		case c.set&f != 0:
			take(&c.to)
		default:
			take(&now)
		}
	}
	pick(fieldLevel, func(from *Settings) { out.Level = from.Level })
	pick(fieldRate, func(from *Settings) { out.Rate = from.Rate })
	pick(fieldCount, func(from *Settings) { out.Count = from.Count })
	pick(fieldFrequency, func(from *Settings) { out.LogFrequency = from.LogFrequency })
	return out, own
}
