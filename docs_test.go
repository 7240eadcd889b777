package main

import (
	"flag"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what is made from the program into docs anew")

// docsGenerated holds a document that is made from the program against what is
// in the file.
func docsGenerated(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile(file)
	if err != nil || string(written) != text {
		t.Errorf("%s is not what is made now: go test . -run '%s' -update (%v)", file, t.Name(), err)
	}
}

// docsFiles are all documents, by their path.
func docsFiles(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	add := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = string(text)
	}
	add("README.md")
	add("CHANGELOG.md")
	err := filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			add(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	docsLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	docsHeading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	docsCode    = regexp.MustCompile("(?ms)^```.*?^```$|`[^`\n]*`")
	docsNoWord  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// docsAnchors are the places in a document that a link can name, as GitHub makes
// them from the headings.
func docsAnchors(text string) map[string]bool {
	anchors := map[string]bool{}
	for _, heading := range docsHeading.FindAllStringSubmatch(text, -1) {
		anchors[strings.ReplaceAll(docsNoWord.ReplaceAllString(strings.ToLower(heading[1]), ""), " ", "-")] = true
	}
	return anchors
}

// Every link between documents leads somewhere, and every document is linked
// from the README.
func TestDocsLinks(t *testing.T) {
	files := docsFiles(t)
	for path, text := range files {
		for _, link := range docsLink.FindAllStringSubmatch(docsCode.ReplaceAllString(text, ""), -1) {
			u, err := url.Parse(link[1])
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			if u.Scheme != "" {
				continue
			}
			target := filepath.Clean(path)
			if u.Path != "" {
				target = filepath.Join(filepath.Dir(path), u.Path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads nowhere", path, link[1])
				continue
			}
			if u.Fragment != "" && !docsAnchors(files[target])[u.Fragment] {
				t.Errorf("%s: the link %s: %s has no such heading", path, link[1], target)
			}
		}
	}
	for path := range files {
		if strings.HasPrefix(path, "docs") && !strings.Contains(files["README.md"], "("+filepath.ToSlash(path)+")") {
			t.Errorf("the README does not name %s", path)
		}
	}
}

// Every variable that a document names is one that the program reads.
func TestDocsVariables(t *testing.T) {
	known := map[string]bool{"JPINTEL_PROBE_KEY": true, "JPINTEL_WEBHOOK_SECRETS": true} // of scripts/ssrf_probe, and docs/verify/receiver.py
	for _, f := range configFields() {
		known[f.name] = true
	}
	for path, text := range docsFiles(t) {
		for _, name := range regexp.MustCompile(`JPINTEL_[A-Z_]+`).FindAllString(text, -1) {
			if !known[name] {
				t.Errorf("%s: there is no variable %s", path, name)
			}
		}
	}
}
