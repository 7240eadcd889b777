package webhook

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// The list has every word, and the guard takes each refusal's word from it.
func TestBlockedReasonsAreAll(t *testing.T) {
	source, err := os.ReadFile("refusal.go")
	if err != nil {
		t.Fatal(err)
	}
	var declared []BlockedReason
	for _, m := range regexp.MustCompile(`Blocked\w+ +BlockedReason = "(\w+)"`).FindAllSubmatch(source, -1) {
		declared = append(declared, BlockedReason(m[1]))
	}
	if len(declared) < 20 || !slices.Equal(declared, BlockedReasons) {
		t.Errorf("declared: %q\nlisted: %q", declared, BlockedReasons)
	}
	guard, err := os.ReadFile("guard.go")
	if err != nil {
		t.Fatal(err)
	}
	calls := regexp.MustCompile(`refuse\((\w+|"\w*")`).FindAllSubmatch(guard, -1)
	for _, call := range calls {
		if word := string(call[1]); word != "rangeOf" && !regexp.MustCompile(`^Blocked[A-Z]`).MatchString(word) {
			t.Errorf("the guard refuses with %s, which is not of the list", word)
		}
	}
	if len(calls) < 20 {
		t.Errorf("only %d refusals were found", len(calls))
	}
}

// Every attack is refused with a word of the list, wherever it is refused.
func TestSSRFCasesHaveAWord(t *testing.T) {
	g := strict(t, nil)
	words := map[BlockedReason]bool{}
	for _, c := range ssrfCases(t) {
		canonical, err := g.CheckURL(c.url)
		if err == nil {
			_, err = resolveURL(t, g, canonical)
		}
		word := BlockedReason(reasonOf(err))
		if c.verdict == "BLOCK" && c.layer != "dns" && !slices.Contains(BlockedReasons, word) {
			t.Errorf("%s: %q is refused with %q", c.id, c.url, word)
		}
		words[word] = true
	}
	if len(words) < 12 {
		t.Errorf("only these were seen: %v", words)
	}
}
