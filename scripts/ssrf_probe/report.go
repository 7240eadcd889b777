package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// The words for what the server did, or must do.
const (
	refused      = "refused"
	accepted     = "accepted"
	blocked      = "blocked_address"
	notFollowed  = "http_redirect"
	noConnection = "no connection"
	delivered    = "delivered"
	skipped      = "skipped"
	failed       = "error"
)

// result is what came of one case.
type result struct {
	ID       string `json:"id"`
	Group    string `json:"group"`
	Expected string `json:"expected"`
	Got      string `json:"got"`
	Detail   string `json:"detail"`
	Surprise bool   `json:"surprise"`
	attack   bool
}

// report is all results.
type report struct {
	results []result
	visits  int // to the canary
}

// minAttacks is how many have to be tried for a run to mean anything.
const minAttacks = 40

// counts are the last line.
type counts struct {
	Attacks   int `json:"attacks"` // tried
	Allowed   int `json:"allowed"` // must-allow cases tried
	Skipped   int `json:"skipped"`
	Surprises int `json:"surprises"`
	Visits    int `json:"canary_connections"`
}

func (r *report) add(one result) { r.results = append(r.results, one) }

func (r *report) counts() counts {
	c := counts{Visits: r.visits}
	for _, one := range r.results {
		switch {
		case one.Got == skipped:
			c.Skipped++
		case one.attack:
			c.Attacks++
		default:
			c.Allowed++
		}
		if one.Surprise {
			c.Surprises++
		}
	}
	return c
}

func (r *report) good() bool {
	c := r.counts()
	return c.Surprises == 0 && c.Visits == 0 && c.Attacks >= minAttacks
}

func (r *report) print(w io.Writer, asJSON bool) error {
	c := r.counts()
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		return enc.Encode(struct {
			Data []result `json:"data"`
			counts
		}{r.results, c})
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tGROUP\tEXPECTED\tGOT\tDETAIL")
	for _, one := range r.results {
		got := one.Got
		if one.Surprise {
			got += " !!"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", one.ID, one.Group, one.Expected, got, clean(one.Detail))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if c.Attacks < minAttacks {
		fmt.Fprintf(w, "Only %d attacks were tried: at least %d are wanted.\n", c.Attacks, minAttacks)
	}
	_, err := fmt.Fprintf(w, "%d attacks and %d must-allow cases tried, %d skipped, %d surprises, %d connections to the canary\n",
		c.Attacks, c.Allowed, c.Skipped, c.Surprises, c.Visits)
	return err
}

const maxDetail = 160 // runes

// clean keeps the server's words, and the URLs, on one line of the terminal.
func clean(s string) string {
	line := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	if runes := []rune(line); len(runes) > maxDetail {
		return string(runes[:maxDetail]) + "…"
	}
	return line
}
