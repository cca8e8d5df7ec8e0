package repository

import (
	"os"
	"path/filepath"
	"testing"
)

// A repository that is given twice is one repository, however its path is written.
func TestFindTakesOneRepositoryOnce(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	for _, folder := range []string{filepath.Join(dir, "m"), filepath.Join(other, "m"), filepath.Join(other, "n")} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	folders, err := Find([]string{dir, dir + "/", dir + "/../" + filepath.Base(dir)})
	if err != nil || len(folders) != 1 || len(folders[0].Also) != 0 {
		t.Errorf("the same thrice: got %+v, %v", folders, err)
	}
	folders, err = Find([]string{dir, other, dir})
	if err != nil || len(folders) != 2 || len(folders[0].Also) != 1 || folders[0].Also[0] != filepath.Join(other, "m") {
		t.Errorf("with another: got %+v, %v", folders, err)
	}
	if _, err = Find([]string{dir + "/nope", dir + "/nope/"}); err == nil {
		t.Error("a repository that is not there: no error")
	}
}
