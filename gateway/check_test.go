package gateway

import (
	"bytes"
	"strings"
	"testing"
)

func TestCheckOfNoRepository(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Repository.Paths = []string{t.TempDir() + "/nope"}
	cfg.Workers.Binary = "/nonexistent"
	var out bytes.Buffer
	err := Check(t.Context(), cfg, &out)
	if err == nil || err.Error() != "1 repository fault" || !strings.Contains(out.String(), "/nope': no such file or directory") {
		t.Errorf("got %v and\n%s", err, &out)
	}
}
