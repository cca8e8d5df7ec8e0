// Command compose reads Compose files with the library that Docker Compose itself reads
// them with: schema, interpolation, merging, consistency. It writes the project as JSON,
// or says what is wrong. It is a module of its own, for tests alone.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "compose:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, files []string) error {
	options, err := cli.NewProjectOptions(files)
	if err != nil {
		return err
	}
	project, err := options.LoadProject(ctx)
	if err != nil {
		return err
	}
	text, err := project.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}
