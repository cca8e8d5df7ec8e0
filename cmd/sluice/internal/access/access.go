// Package access has the commands on who may call: `sluice keys` makes API keys, `sluice
// policy` checks policies and explains what they decide.
package access

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-serve/sluice/gateway/auth"
	"github.com/sluice-serve/sluice/infer"
)

// ErrDenied is the error of a question that the policy answers with no.
var ErrDenied = errors.New("denied")

const keysUsage = `Usage: sluice keys new NAME [--tenant NAME] [--groups NAME,NAME]

Makes an API key of 256 random bits. The key goes to standard error, once: give it to the
caller. Its line for the file of --api-keys, which has the digest only, goes to standard output:

  sluice keys new alice --groups ops >> keys.txt
`

// Keys is `sluice keys`: the key goes to stderr and its line to stdout.
func Keys(args []string, stdout, stderr io.Writer) error {
	fs := newFlags("keys")
	tenant := fs.String("tenant", "", "")
	groups := fs.StringSlice("groups", nil, "")
	rest, help, err := parse(fs, args)
	if help || err != nil {
		return errors.Join(err, print(stdout, help, keysUsage))
	}
	if len(rest) != 2 || rest[0] != "new" {
		return errors.New("give what to do: sluice keys new NAME")
	}
	key, line, err := auth.NewKey(rest[1], *tenant, *groups)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, line); err != nil {
		return err
	}
	_, err = fmt.Fprintln(stderr, key)
	return err
}

const policyUsage = `Usage: sluice policy check FILE [--as NAME] [--groups NAME,NAME] [--action NAME] [--model NAME]

Reads a policy and says what is wrong with it. With --action it says whether a caller has that
right, and by which rule: --as names the caller ("anonymous", or none, is one who showed nothing),
--model the model. The exit status is 1 where it is denied.
`

// Policy is `sluice policy`.
func Policy(args []string, stdout io.Writer) error {
	fs := newFlags("policy")
	as := fs.String("as", "", "")
	groups := fs.StringSlice("groups", nil, "")
	action := fs.String("action", "", "")
	model := fs.String("model", "", "")
	rest, help, err := parse(fs, args)
	if help || err != nil {
		return errors.Join(err, print(stdout, help, policyUsage))
	}
	if len(rest) != 2 || rest[0] != "check" {
		return errors.New("give what to do: sluice policy check FILE")
	}
	data, err := os.ReadFile(rest[1])
	if err != nil {
		return err
	}
	policy, err := auth.ParsePolicy(rest[1], data)
	if err != nil {
		return err
	}
	if *action == "" {
		return print(stdout, true, rest[1]+": good\n")
	}
	who := &infer.Principal{Name: *as, Groups: *groups}
	if *as == "anonymous" {
		who.Name = ""
	}
	allowed, why, err := policy.Explain(who, *action, *model)
	if err != nil {
		return err
	}
	if err := print(stdout, true, why); err != nil {
		return err
	}
	if !allowed {
		return ErrDenied
	}
	return nil
}

func newFlags(name string) *pflag.FlagSet {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.Usage = func() {}
	fs.SetOutput(io.Discard)
	return fs
}

func parse(fs *pflag.FlagSet, args []string) (rest []string, help bool, err error) {
	if len(args) == 0 || slices.Contains(args, "--help") || args[0] == "help" {
		return nil, true, nil
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, true, nil
		}
		return nil, false, errors.New(strings.TrimPrefix(err.Error(), "pflag: "))
	}
	return fs.Args(), false, nil
}

func print(w io.Writer, on bool, text string) error {
	if !on {
		return nil
	}
	_, err := io.WriteString(w, text)
	return err
}
