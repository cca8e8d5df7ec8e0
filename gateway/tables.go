package gateway

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// render draws one start-up table.
func render(header []string, rows [][]string) string {
	t := table.NewWriter()
	t.SetStyle(table.StyleDefault)
	t.Style().Format.Header = 0 // as written
	t.AppendHeader(row(header))
	for _, r := range rows {
		t.AppendRow(row(r))
	}
	return "\n" + t.Render() + "\n"
}

func row(cells []string) table.Row {
	out := make(table.Row, len(cells))
	for i, c := range cells {
		out[i] = c
	}
	return out
}

// options are the rows of the start-up table of settings.
func (c *Config) options() [][]string {
	rows := [][]string{
		{"server_id", c.ID},
		{"server_version", c.Version},
	}
	for i, p := range c.Repository.Paths {
		rows = append(rows, []string{fmt.Sprintf("model_repository_path[%d]", i), p})
	}
	rows = append(rows, c.RateLimit.options()...)
	rows = append(rows, c.describePlatforms()...)
	return append(rows, [][]string{
		{"model_control_mode", "MODE_" + strings.ToUpper(c.Repository.Mode.String())},
		{"auto_complete_config", strconv.FormatBool(!c.Repository.NoAutoComplete)},
		{"strict_readiness", strconv.FormatBool(c.Repository.StrictReadiness)},
		{"exit_on_error", strconv.FormatBool(c.Repository.ExitOnError)},
		{"exit_timeout", c.ExitTimeout.String()},
		{"cache_enabled", strconv.FormatBool(len(c.Cache) > 0)},
		{"request_arena_byte_size", strconv.FormatInt(c.Workers.RequestArena, 10)},
		{"response_arena_byte_size", strconv.FormatInt(c.Workers.ResponseArena, 10)},
		{"remote_workers", strings.Join(c.Workers.Remote, " ")},
	}...)
}
