package repository

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFolders(t *testing.T) {
	big := strings.Replace(identity, "count: 2", "count: 7", 1)
	one := write(t, t.TempDir(), map[string]string{"a/config.pbtxt": identity, "a/1/": "", "a/configs/big.pbtxt": big, "b/config.pbtxt": identity, "b/1/": ""})
	two := write(t, t.TempDir(), map[string]string{"a/config.pbtxt": identity, "a/1/": ""})
	for _, row := range []struct {
		cfg  Config
		want string
	}{
		{Config{Paths: []string{one, two}}, "a 2 1, b 2 0"},
		{Config{Paths: []string{one, two}, Namespacing: true}, "a 2 0, a 2 0, b 2 0"},
		{Config{Paths: []string{one}, ConfigName: "big"}, "a 7 0, b 2 0"},
		{Config{Paths: []string{one}, ConfigName: "../configs/big"}, "a 2 0, b 2 0"},
	} {
		folders, err := Folders(&row.cfg)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range folders {
			cfg, _, err := f.readConfig(true)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.Join([]string{f.Name, string(rune('0' + cfg.InstanceGroup[0].Count)), string(rune('0' + len(f.Also)))}, " "))
		}
		if strings.Join(got, ", ") != row.want {
			t.Errorf("%v: got %q, want %s", row.cfg, got, row.want)
		}
	}
}

// TestLinksThatMultiply: folders that lead to one another through links are told of, not
// walked through for ever: circles, and a chain of which each part shows the next one often.
func TestLinksThatMultiply(t *testing.T) {
	link := func(to, at string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(to, at)); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		under  string
		circle bool
	}{{"m/1", true}, {"m/.hidden", true}, {"m/1", false}, {"m/.hidden", false}} {
		root := t.TempDir()
		for i := range 12 {
			if row.circle {
				link(".", filepath.Join(root, row.under, fmt.Sprint("l", i)))
				continue
			}
			link(filepath.Join(root, "p0"), filepath.Join(root, row.under, fmt.Sprint("l", i)))
			for part := range 12 {
				link(filepath.Join(root, fmt.Sprint("p", part+1)), filepath.Join(root, fmt.Sprint("p", part), fmt.Sprint("l", i)))
			}
		}
		if err := os.MkdirAll(filepath.Join(root, "p12"), 0o755); err != nil {
			t.Fatal(err)
		}
		done := make(chan [2]error, 1)
		go func() {
			_, looked := lookUpTo(filepath.Join(root, "m"), 2000)
			w := walker{ctx: t.Context(), write: func([]byte) {}, sum: sha256.New(), left: 2000}
			done <- [2]error{looked, w.folder(filepath.Join(root, "m"), "", nil, maxNesting)}
		}()
		select {
		case errs := <-done:
			hidden := strings.Contains(row.under, "/.")
			if (errs[0] == nil) != hidden || errs[1] == nil {
				t.Errorf("%+v: looking %v, hashing %v", row, errs[0], errs[1])
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%+v: the walk does not end", row)
		}
	}
}
