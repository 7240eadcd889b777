package modelgate

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"jpintel/billing/money"
	"jpintel/billing/strictjson"
)

// object is a JSON object as it was sent.
type object = strictjson.Object

// reader takes members out of an object. The first that is not as the contract
// says is its error; the others are then zero.
type reader struct {
	object
	err        error
	violations []string // against the contract, but with one meaning
}

func (r *reader) fail(name, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: want %s", name, want)
	}
}

// text is a string that has to be there.
func (r *reader) text(name string) string {
	text, ok := r.object[name].(string)
	if !ok || text == "" {
		r.fail(name, "a string")
	}
	return text
}

// optional is a string, null or missing.
func (r *reader) optional(name string) string {
	text, ok := r.object[name].(string)
	if !ok && r.object[name] != nil {
		r.fail(name, "a string or null")
	}
	return text
}

// idForm leaves out what would need escaping in a path or a key.
var idForm = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}$`)

// ValidID reports whether a text can be an id of the upstream's.
func ValidID(id string) bool { return idForm.MatchString(id) }

// id is an id that goes into paths and keys later.
func (r *reader) id(name string) string {
	id := r.text(name)
	if r.err == nil && !idForm.MatchString(id) {
		r.fail(name, "an id of at most 100 letters, digits or _ . -")
	}
	return id
}

func (r *reader) truth(name string) bool {
	value, ok := r.object[name].(bool)
	if !ok {
		r.fail(name, "true or false")
	}
	return value
}

// money is an amount: a string. A number is read as it is written, digit by
// digit, and noted: the contract knows strings only.
func (r *reader) money(name string) (a money.Amount) {
	var err error
	switch value := r.object[name].(type) {
	case string:
		a, err = money.ParseSigned(value)
	case json.Number:
		a, err = money.ParseSigned(value.String())
		r.violations = append(r.violations, name+" is a number")
	default:
		err = errors.New("missing")
	}
	if err != nil {
		r.fail(name, "an amount as a string")
	}
	return a
}

func (r *reader) currency(name string) money.Currency {
	c, err := money.ParseCurrency(r.text(name))
	if err != nil {
		r.fail(name, err.Error())
	}
	return c
}

func (r *reader) time(name string) time.Time {
	at, err := time.Parse(time.RFC3339, r.text(name))
	if err != nil {
		r.fail(name, "a time")
	}
	return at.UTC()
}
