package python

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// options are those of --backend-config=python,<name>=<value>.
type options struct {
	python  string   // the interpreter of models that name none; "": see pyenv.Resolve
	install bool     // requirements.txt in models' folders is installed
	passed  []string // variables that models get although their names are those of secrets
	cache   string   // where the runner and environments are laid down; "": the user's cache folder
}

// readOptions takes Triton's options, of which those of its shared memory do nothing here, and
// knows of no others but its own.
func readOptions(all map[string]string) (options, error) {
	o := options{}
	for name, value := range all {
		switch name {
		case "python":
			o.python = value
		case "install":
			if value != "yes" && value != "no" {
				return o, infer.Errorf(infer.InvalidArg, "the python backend's install is '%s', want yes or no", value)
			}
			o.install = value == "yes"
		case "shm-default-byte-size", "shm-growth-byte-size", "shm-region-prefix-name", "shm_message_queue_size",
			"thread-pool-size", "stub-timeout-seconds":
			slog.Info("an option of Triton's Python backend has nothing to set here", "option", name)
		case "environment":
			for _, name := range strings.Split(value, ",") {
				if name = strings.TrimSpace(name); name == "" || strings.Contains(name, "=") {
					return o, infer.Errorf(infer.InvalidArg,
						"the python backend's environment is '%s', want names of variables with commas between them", value)
				}
				o.passed = append(o.passed, name)
			}
		case "cache-directory":
			if !filepath.IsAbs(value) {
				return o, infer.Errorf(infer.InvalidArg,
					"the python backend's cache-directory '%s' is no absolute path", value)
			}
			o.cache = value
		}
	}
	return o, nil
}

// cacheFolder is the folder under which the backend lays files down.
func (o *options) cacheFolder() (string, error) {
	if o.cache != "" {
		return o.cache, nil
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "sluice", "python"), nil
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("sluice-python-%d", os.Getuid())), nil
}
