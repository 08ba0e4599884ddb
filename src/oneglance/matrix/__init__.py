"""The audit matrix (Table 7): what is compared with what, each drafter next to its drafter-free controls."""
