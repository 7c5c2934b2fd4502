"""The worker: claims, slots, the settler that writes outcomes, and the rounds beside them.

It moves leased rows of any source through their life. What a row means, and its SQL, belong to the surfaces; what a
process does with signals and children is `process`.
"""

from holdfast.worker.worker import Worker as Worker
