package flags

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/tracing"
)

func TestTraceFlags(t *testing.T) {
	const both = infer.TraceTimestamps | infer.TraceTensors
	for _, c := range []struct {
		args   string
		want   tracing.Settings
		notice string
	}{
		{"", tracing.Settings{Rate: 1000, Count: -1}, ""},
		{"--trace-config=level=TIMESTAMPS --trace-config level=tensors --trace-config=rate=2 --trace-config=count=3 --trace-config=mode=triton " +
			"--trace-config=triton,file=/a=b,c --trace-config=Triton,log-frequency=4",
			tracing.Settings{Level: both, Rate: 2, Count: 3, LogFrequency: 4, File: "/a=b,c"}, ""},
		{"--trace-config=level=OFF --trace-config=level=TIMESTAMPS", tracing.Settings{Rate: 1000, Count: -1}, ""},
		{"--trace-config=level=min --trace-config=triton,file=f --trace-config=rate=1 --trace-config=rate=0",
			tracing.Settings{Level: infer.TraceTimestamps, Count: -1, File: "f"}, "rate is 0"},
		{"--trace-config=level=on", tracing.Settings{Level: infer.TraceTimestamps, Rate: 1000, Count: -1}, "triton,file=<path> is not given"},
		{"--trace-file=f --trace-level=TIMESTAMPS --trace-level=TENSORS --trace-rate=5 --trace-count=6 --trace-log-frequency=7",
			tracing.Settings{Level: both, Rate: 5, Count: 6, LogFrequency: 7, File: "f"}, "--trace-file is deprecated: use --trace-config triton,file=<path>"},
		{"--trace-config=triton,file=new --trace-file=old", tracing.Settings{Rate: 1000, Count: -1, File: "new"},
			"--trace-file is overridden by the file of --trace-config"},
	} {
		s := parse(t, strings.Fields(c.args)...)
		if s.Config.Trace != c.want {
			t.Errorf("%s: got %+v, want %+v", c.args, s.Config.Trace, c.want)
		}
		if got := strings.Join(s.Notices, "\n"); !strings.Contains(got, c.notice) || c.notice == "" && got != "" {
			t.Errorf("%s: notices %q, want %q", c.args, got, c.notice)
		}
	}
}

// The texts are the original's where it has any.
func TestTraceFlagFaults(t *testing.T) {
	for args, want := range map[string]string{
		"--trace-config=level=X":                            "invalid value for trace level option: x",
		"--trace-config=rate=x":                             "Invalid option value. Got x",
		"--trace-config=rate=-1":                            "Provided option value is out of bound. Got -1",
		"--trace-config=count=99999999999":                  "Provided option value is out of bound. Got 99999999999",
		"--trace-config=mode=foo":                           `invalid value for trace mode option: foo. Available options are "triton" and "opentelemetry"`,
		"--trace-config=foo,level=OFF":                      `invalid value for trace mode option: foo. Available options are "triton" and "opentelemetry"`,
		"--trace-config=,level=OFF":                         "No trace mode specified. --trace-config option format is <trace mode>,<setting>=<value> or <setting>=<value>. Got ,level=OFF",
		"--trace-config=level":                              "--trace-config option format is '<trace mode>,<setting>=<value>'. Got level",
		"--trace-config=level=":                             "--trace-config option format is '<trace mode>,<setting>=<value>'. Got level=",
		"--trace-config=triton,file=":                       "--trace-config option format is '<trace mode>,<setting>=<value>'. Got triton,file=",
		"--trace-config=triton,log-frequency=x":             "Invalid option value. Got x",
		"--trace-config=opentelemetry,file=f":               "mode opentelemetry has no setting 'file'; there are url, resource, baggage, bsp_max_queue_size",
		"--trace-config=opentelemetry,url=":                 "--trace-config option format is '<trace mode>,<setting>=<value>'. Got opentelemetry,url=",
		"--trace-config=opentelemetry,resource=a":           "opentelemetry,resource is <key>=<value>. Got a",
		"--trace-config=opentelemetry,bsp_max_queue_size=x": "Invalid option value. Got x",
		"--trace-config=opentelemetry,bsp_max_queue_size=0": "Provided option value is out of bound. Got 0",
		"--trace-config=levle=OFF":                          "no setting 'levle'; there are level, rate, count, mode",
		"--trace-config=triton,url=u":                       "mode triton has no setting 'url'; there are file and log-frequency",
		"--trace-level=X":                                   "invalid value for trace level option: x",
		"--trace-rate=x":                                    "Invalid option value. Got x",
	} {
		if _, err := ParseServe([]string{"--model-repository=/m", args}, none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", args, err, want)
		}
	}
}
