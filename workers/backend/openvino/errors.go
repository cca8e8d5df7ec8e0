package openvino

import (
	"errors"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sluice-serve/sluice/workers/backend"
)

// place is what OpenVINO puts before a text: where in its sources, and what was checked there.
var place = regexp.MustCompile(`(?m)^(Exception from \S+:\d+:|Check '.*' failed at \S+:\d+:|\S+\.(cpp|hpp|h):\d+:?)\s*`)

const mostText = 1024 // bytes of an error of OpenVINO's

// cleaner makes texts of OpenVINO's for a model's owner: without places in its sources and the path of the repository.
func cleaner(spec backend.Spec) func(error) error {
	return func(err error) error {
		text := err.Error()
		for before := ""; before != text; {
			before = text
			text = strings.TrimSpace(place.ReplaceAllString(text, ""))
		}
		text = strings.ReplaceAll(text, spec.ModelDir+string(filepath.Separator), "")
		lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
		for i := range lines {
			lines[i] = strings.TrimSpace(lines[i])
		}
		if text = strings.Join(lines, "; "); len(text) > mostText {
			text = strings.ToValidUTF8(text[:mostText], "") + "…"
		}
		return errors.New(text)
	}
}
