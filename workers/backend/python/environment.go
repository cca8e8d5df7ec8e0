package python

import (
	"slices"
	"strings"
)

// secretPrefixes and secretSuffixes are of names of variables that models don't get.
var (
	secretPrefixes = []string{"SLUICE_", "AWS_", "AZURE_", "GOOGLE_APPLICATION_CREDENTIALS", "GCP_", "OSS_", "S3_"}
	secretSuffixes = []string{"_TOKEN", "_SECRET", "_PASSWORD", "_API_KEY", "_CREDENTIALS"}
)

// environment is the worker's without its own variables and those that lead to secrets, but with
// those whose names are in passed.
func environment(all, passed []string) []string {
	kept := make([]string, 0, len(all))
	for _, v := range all {
		name, _, _ := strings.Cut(v, "=")
		if !secret(name) || slices.Contains(passed, name) {
			kept = append(kept, v)
		}
	}
	return kept
}

// secret says that a variable of that name is kept from models.
func secret(name string) bool {
	return slices.ContainsFunc(secretPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) ||
		slices.ContainsFunc(secretSuffixes, func(s string) bool { return strings.HasSuffix(name, s) })
}
