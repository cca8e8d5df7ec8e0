package fil

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/workers/backend/fil/forest"
)

// modelFile is the file of a version, where path is what the gateway thinks it is: a file, or the version's folder where it knows of
// no name. as is what the config says that it holds; nil: nothing.
func modelFile(path string, as *format) (string, error) {
	st, err := os.Stat(path)
	switch {
	case err == nil && st.IsDir():
		if as != nil {
			return exists(filepath.Join(path, as.file))
		}
		for _, f := range formats {
			if file := filepath.Join(path, f.file); isFile(file) {
				return file, nil
			}
		}
		return "", fmt.Errorf("its version folder has none of %s", names(func(f format) string { return f.file }))
	case as != nil && filepath.Base(path) != as.file && slices.ContainsFunc(formats, func(f format) bool { return f.file == filepath.Base(path) }):
		// The gateway takes the first file that has a name by default; model_type may mean another.
		if file := filepath.Join(filepath.Dir(path), as.file); isFile(file) {
			return file, nil
		}
	}
	return exists(path)
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

func exists(path string) (string, error) {
	if !isFile(path) {
		return "", fmt.Errorf("'%s' is not in its version folder, or no file", filepath.Base(path))
	}
	return path, nil
}

// plain is an error without the path of the repository.
func plain(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func formatOf(f forest.Format) *format {
	return &formats[slices.IndexFunc(formats, func(x format) bool { return x.format == f })]
}

func modelTypes() string { return names(func(f format) string { return f.modelType }) }

func names(of func(format) string) string {
	all := make([]string, len(formats))
	for i, f := range formats {
		all[i] = of(f)
	}
	return strings.Join(all, ", ")
}
