package accesslog

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"
)

// Stdout as a Config's File is the process's standard output.
const Stdout = "stdout"

// Config is --access-log and --access-log-config.
type Config struct {
	File string // a path, or Stdout; "": no access log
	// Successes N writes one of N calls that went well, 0 none of them. Calls that failed
	// are always written.
	Successes int
	// Slow writes every call that took as long, whatever Successes says; 0: none.
	Slow time.Duration
	// Health writes health checks that went well, too.
	Health bool
	// MaxBytes is the size from which a file is moved to File.1, File.1 to File.2 and so
	// on, of which Keep are kept; 0: the file grows. A file alone has that.
	MaxBytes int64
	Keep     int
	// Buffer bytes of lines may wait to be written.
	Buffer int
}

// DefaultConfig is all calls but health checks, 4 MiB of lines in memory.
func DefaultConfig() Config { return Config{Successes: 1, Keep: 5, Buffer: 4 << 20} }

// On says that there is an access log.
func (c *Config) On() bool { return c.File != "" }

// Names are the settings that Set takes.
func Names() []string {
	return []string{"successes", "slow-ms", "health", "max-bytes", "keep", "buffer-bytes"}
}

// Set changes one setting by its name.
func (c *Config) Set(name, value string) error {
	number := func(low, high int64) (int64, error) {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < low || n > high {
			return 0, fmt.Errorf("%s is '%s', not a whole number from %d to %d", name, value, low, high)
		}
		return n, nil
	}
	var n int64
	var err error
	switch name {
	case "successes":
		n, err = number(0, 1<<31)
		c.Successes = int(n)
	case "slow-ms":
		n, err = number(0, 1<<31)
		c.Slow = time.Duration(n) * time.Millisecond
	case "health":
		if c.Health, err = strconv.ParseBool(value); err != nil {
			err = fmt.Errorf("health is '%s', not true or false", value)
		}
	case "max-bytes":
		c.MaxBytes, err = number(0, 1<<50)
	case "keep":
		n, err = number(1, 1000)
		c.Keep = int(n)
	case "buffer-bytes":
		n, err = number(64<<10, 1<<30)
		c.Buffer = int(n)
	default:
		err = fmt.Errorf("no setting '%s'; there are %v", name, Names())
	}
	return err
}

// Validate says everything that is wrong with c at once, or nil.
func (c *Config) Validate() error {
	if !c.On() {
		return nil
	}
	var errs []error
	if c.File == Stdout && c.MaxBytes > 0 {
		errs = append(errs, errors.New("--access-log-config max-bytes needs a file: standard output can't be moved away"))
	}
	if c.Buffer < 64<<10 {
		errs = append(errs, fmt.Errorf("--access-log-config buffer-bytes is %d, less than 65536", c.Buffer))
	}
	return errors.Join(errs...)
}

// Deps are the collaborators. Both may be nil.
type Deps struct {
	// Reopen tells Run to open the file by its name again: SIGHUP.
	Reopen <-chan os.Signal
	// Log is told when the file can't be written, at most once a minute.
	Log *slog.Logger
}
