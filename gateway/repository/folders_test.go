package repository

import (
	"strings"
	"testing"
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
