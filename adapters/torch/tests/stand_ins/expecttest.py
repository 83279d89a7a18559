"""What PyTorch's tests need of the package expecttest, for machines without it: expected texts are compared, and never
rewritten. pytorch_own.py uses it."""
import unittest

ACCEPT = False


class TestCase(unittest.TestCase):
    longMessage = True

    def assertExpectedInline(self, actual, expect, skip=0):
        self.assertMultiLineEqual(expect, actual)

    def assertExpectedRaisesInline(self, kind, call, expect, *arguments, **named):
        with self.assertRaises(kind) as caught:
            call(*arguments, **named)
        self.assertMultiLineEqual(expect, str(caught.exception))
