package modelgatetest

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// control is a call beside the contract, for whoever plays with the upstream. It
// needs no token.
type control struct {
	method, path string
	serve        func(*Upstream, *http.Request) (any, error)
}

var controls = []control{
	{"GET", "/__state", showState},
	{"POST", "/__advance", advance},
	{"POST", "/__faults", addFault},
	{"DELETE", "/__faults", clearFaults},
	{"POST", "/__usage", use},
}

func (u *Upstream) serveControl(c control, w http.ResponseWriter, r *http.Request) {
	status := http.StatusOK
	v, err := c.serve(u, r)
	if err != nil {
		status, v = http.StatusBadRequest, map[string]string{"error": err.Error()}
	}
	answer := jsonReply(status, v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(answer.body, '\n')) // who has left does not get it
}

// readControl reads a body, in which everything has to be known.
func readControl(r *http.Request, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

func showState(u *Upstream, _ *http.Request) (any, error) { return u.State(), nil }

// advance takes {"d":"169h"}.
func advance(u *Upstream, r *http.Request) (any, error) {
	var body struct {
		D string `json:"d"`
	}
	if err := readControl(r, &body); err != nil {
		return nil, err
	}
	d, err := time.ParseDuration(body.D)
	if err != nil || d < 0 {
		return nil, errors.New("d: want a duration like 169h")
	}
	return map[string]string{"now": stamp(u.Advance(d))}, nil
}

// addFault takes a Rule.
func addFault(u *Upstream, r *http.Request) (any, error) {
	var rule Rule
	if err := readControl(r, &rule); err != nil {
		return nil, err
	}
	if err := u.AddFaults(rule); err != nil {
		return nil, err
	}
	return map[string]any{"faults": u.State().Faults}, nil
}

func clearFaults(u *Upstream, _ *http.Request) (any, error) {
	u.ClearFaults()
	return map[string]any{"faults": []FaultState{}}, nil
}

// use takes a Used.
func use(u *Upstream, r *http.Request) (any, error) {
	var used Used
	if err := readControl(r, &used); err != nil {
		return nil, err
	}
	return u.Use(used)
}
